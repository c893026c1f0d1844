"""Writing columns: values of a fixed size for each token of a finished dataset. Reading needs none of it.

Open writer.py first.
"""
