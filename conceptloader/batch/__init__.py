"""Batches in numpy.

Open layout.py first: the arrays of a batch. Then compiled.py, with kernels/, and messages.py: what is wrong with data.
"""
