"""From documents to files: builds of shards by processes that share nothing but a directory.

Open build.py first, then shard.py, which writes one shard.
"""
