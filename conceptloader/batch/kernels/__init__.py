"""Compiled code that fills a batch without the GIL: from sample indices to arrays, in one call.

Open fill.py first; records.py has the types that kernels know, tables.py what they know of the datasets.
"""
