"""Batches in numpy.

Open layout.py first: the arrays of a batch. Then reader.py, which has the kernels fill them, pass by pass, and
messages.py: what is wrong with data. loader.py has what a rank gets, one batch after the other.
"""
