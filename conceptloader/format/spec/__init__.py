"""What a dataset consists of: names, sizes, the manifest, codecs. No file of tokens is opened here.

Open layout.py first, then manifest.py.
"""
