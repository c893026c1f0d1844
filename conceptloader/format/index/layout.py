"""Names and types of the index's files."""

import os

import numpy as np

from conceptloader.base.hashing import fingerprint
from conceptloader.format.spec.manifest import Manifest

FORMAT = "conceptindex"
VERSION = 1
INDEX = "index.json"

HEAD = np.dtype([("concept", "<u4"), ("first", "<u8"), ("spans", "<u8"), ("tokens", "<u8")])
"""A concept: its first row, how many spans and tokens carry it."""
ROW = np.dtype(
    [("concept", "<u4"), ("shard", "<u4"), ("spans", "<u8"), ("tokens", "<u8"), ("offset", "<u8"), ("bytes", "<u8"),
     ("checksum", "<u8")]
)  # fmt: skip
"""Postings of a concept in a piece of a shard. checksum: XXH3-64 of their bytes."""


def index_directory(dataset: str, track: str) -> str:
    """Where the index of a track lies."""
    return os.path.join(dataset, f"{track}.concept_index")


def shard_file(shard: int, kind: str) -> str:
    return f"{shard:05d}.{kind}"


def source_fingerprint(manifest: Manifest) -> str:
    """Of all that an index depends on."""
    return fingerprint([manifest.stream_fingerprint(), manifest.tracks_fingerprint()])
