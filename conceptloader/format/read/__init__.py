"""From files to arrays: any range of tokens of a dataset with its documents and spans.

Open dataset.py first, which puts shards together; below it bulk.py reads one, files.py finds their files.
"""
