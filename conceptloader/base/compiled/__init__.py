"""The one way in which this project compiles.

Open kernel.py first; cache.py finds machine code on disk, lowering.py is where numba makes it.
"""
