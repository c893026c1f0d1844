"""From raw records (jsonl, parquet) and other libraries' token files to the format.

Open build/builder.py first: rows/ reads records, place/ puts spans on tokens, build/ writes shards with several
processes; adopt/ refers to token files of others, annotate/ adds tracks to a dataset.
"""
