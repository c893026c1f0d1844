"""Bytes on disk per token, by encoding and token type, with spans of 100 tokens and 5 concepts each."""

import os
from pathlib import Path

from data import corpus
from harness import US, Report

report = Report("size")
TOKENS = 1 << 22

for token_type in ("u2", "u4"):
    bare = Path(corpus(f"size-{token_type}-bare", token_type, TOKENS, span=0, shards=1))
    for encoding in ("spans", "dense"):
        path = Path(corpus(f"size-{token_type}-{encoding}", token_type, TOKENS, span=100, encoding=encoding, shards=1))
        used = sum(os.path.getsize(file) for file in path.glob("00000.*"))
        tokens = os.path.getsize(bare / "00000.stream.bin")
        report.fact(f"{token_type} tokens, {encoding}", US, used / tokens, "x the bare tokens")
report.finish()
