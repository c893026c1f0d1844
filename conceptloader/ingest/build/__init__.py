"""Building a dataset from raw records: plan, worker processes, shards, manifest.

Open builder.py first, then shard.py, which is what a worker does.
"""
