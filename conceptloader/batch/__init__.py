"""Batches in numpy.

Open layout.py first: the arrays of a batch. Then compiled.py, which has the kernels fill them, and messages.py:
what is wrong with data.
"""
