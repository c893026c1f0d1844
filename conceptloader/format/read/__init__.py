"""From files to arrays: any range of tokens of a dataset with its documents and spans.

Open dataset.py first; below it ranges.py puts shards together, bulk.py reads one, files.py finds their files.
"""
