"""Names and types of the index's files, and the postings: spans as differences, seven bits a byte."""

import os

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.compiled.kernel import kernel
from conceptloader.base.hashing import fingerprint
from conceptloader.format.spec.columns import Ints
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


@kernel
def encode(concept: Ints, starts: Ints, ends: Ints, out: NDArray[np.uint8], sizes: Ints) -> int:
    """Spans by concept, each as two numbers: tokens since the one before of its concept ended, and its length.

    sizes: bytes of each span. Returns: bytes written to `out`, at most 20 a span.
    """
    at = 0
    for k in range(len(concept)):
        begin = at
        last = ends[k - 1] if k and concept[k] == concept[k - 1] else np.int64(0)
        for number in (starts[k] - last, ends[k] - starts[k]):
            left = np.uint64(number)
            while left >= np.uint64(128):
                out[at] = np.uint8(left & np.uint64(127)) | np.uint8(128)
                left >>= np.uint64(7)
                at += 1
            out[at] = np.uint8(left)
            at += 1
        sizes[k] = at - begin
    return at


@kernel
def decode(data: NDArray[np.uint8], starts: Ints, ends: Ints) -> bool:
    """The inverse, for one concept. Returns: whether `data` were just as many spans as there is room for."""
    at = 0
    last = np.int64(0)
    for k in range(len(starts)):
        for part in range(2):
            number = np.uint64(0)
            shift = np.uint64(0)
            while True:
                if at >= len(data) or shift > np.uint64(56):
                    return False
                byte = np.uint64(data[at])
                at += 1
                number |= (byte & np.uint64(127)) << shift
                shift += np.uint64(7)
                if byte < np.uint64(128):
                    break
            last += np.int64(number)
            if part == 0:
                starts[k] = last
            else:
                ends[k] = last
    return at == len(data)
