"""From raw records (jsonl, parquet) to the format: read, tokenize, place spans, write shards with several processes."""
