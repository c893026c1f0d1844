"""Records of the input as batches of columns: lines, parquet, tokenizers, vocabularies.

Open batch.py first, then records.py (jsonl) and table.py (parquet).
"""
