"""Writing columns: values of a fixed size for each token of a finished dataset. An add-on; reading needs none of it.

Open writer.py first.
"""
