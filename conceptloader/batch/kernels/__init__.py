"""Compiled code that fills a batch without the GIL: from sample indices to arrays, in one call.

Open fill.py first; tables.py has what kernels know of the datasets.
"""
