"""Batches in numpy: a compiled engine, and a plain one that defines what it must give.

Open layout.py first: the arrays of a batch. Then plain.py, and compiled.py with kernels/.
"""
