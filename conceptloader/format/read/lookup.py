"""Finding a document by the id that it had in the input: a sorted table of hashes per shard, a few small reads."""

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.format.read.files import Files
from conceptloader.format.read.reader import ShardReader
from conceptloader.format.spec import layout as fmt

_READ = 256  # entries of 16 bytes fetched at a time


def find_in_shard(reader: ShardReader, shard: int, external_id: str) -> list[int]:
    """Ordinals of the documents of a shard whose external id equals `external_id`, in order."""
    data = external_id.encode("utf-8")
    if not data:
        return []
    size = int(reader.table.files["documents.hash"].size[shard])
    found = _matches(reader.files, shard, size // fmt.HASH_ENTRY.itemsize, xxhash.xxh3_64_intdigest(data))
    limit = int(reader.table.documents[shard])
    return [n for n in sorted(found) if n < limit and reader.external_id(shard, n) == external_id]


def _matches(files: Files, shard: int, count: int, wanted: int) -> list[int]:
    """Ordinals with the hash `wanted`, by interpolation: hashes are uniform, so a guess is off by about sqrt(count)."""
    low, high = 0, count  # entries before `low` are smaller, those from `high` on larger than `wanted`
    first, last = 0, 1 << 64  # bounds of the hashes between
    while high - low > _READ:
        guess = low + (high - low) * (wanted - first) // (last - first)
        begin = max(low, min(guess - _READ // 2, high - _READ))
        hashes = _entries(files, shard, begin, begin + _READ)["hash"]
        smallest, largest = int(hashes[0]), int(hashes[-1])
        if wanted < smallest:
            high, last = begin, smallest
        elif wanted > largest:
            low, first = begin + _READ, largest
        else:
            # Equal entries may go on beyond either end of what was read.
            low = low if wanted == smallest else begin
            high = high if wanted == largest else begin + _READ
            if wanted in (smallest, largest):
                return _scan(files, shard, begin, low, high, wanted)
        first, last = min(first, wanted), max(last, wanted + 1)
    entries = _entries(files, shard, low, high)
    return [int(n) for n in entries["ordinal"][entries["hash"] == np.uint64(wanted)]]


def _scan(files: Files, shard: int, begin: int, low: int, high: int, wanted: int) -> list[int]:
    """All equal entries around `begin`, in steps to both sides; only for ids that many documents share."""
    found: list[int] = []
    for step, start in ((_READ, begin), (-_READ, begin - _READ)):
        while low - _READ < start < high:
            entries = _entries(files, shard, max(start, low), min(start + _READ, high))
            equal = entries["hash"] == np.uint64(wanted)
            found += entries["ordinal"][equal].tolist()
            if not equal.any():
                break
            start += step
    return found


def _entries(files: Files, shard: int, start: int, stop: int) -> NDArray[np.void]:
    return read_items(files, "documents.hash", shard, fmt.HASH_ENTRY, start, stop)


def read_items(files: Files, kind: str, shard: int, dtype: np.dtype[Any], start: int, stop: int) -> NDArray[Any]:
    """Items [start, stop) of the array of `dtype` with which a file of a shard begins."""
    return np.frombuffer(files.read(kind, shard, start * dtype.itemsize, (stop - start) * dtype.itemsize), dtype)
