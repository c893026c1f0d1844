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
    wanted, limit = xxhash.xxh3_64_intdigest(data), int(reader.table.documents[shard])
    found = _matches(reader, shard, wanted)
    return [n for n in sorted(found) if n < limit and reader.external_id(shard, n) == external_id]


def _matches(reader: ShardReader, shard: int, wanted: int) -> list[int]:
    """Ordinals with the hash `wanted`, by interpolation: hashes are uniform, so a guess is off by about sqrt(count)."""

    def entries(start: int, stop: int) -> NDArray[np.void]:
        return read_items(reader.files, "documents.hash", shard, fmt.HASH_ENTRY, start, stop)

    count = int(reader.table.files["documents.hash"].size[shard]) // fmt.HASH_ENTRY.itemsize
    low, high = 0, count  # entries before `low` are smaller than `wanted`, those from `high` on are not
    first, last = 0, 1 << 64  # bounds of the hashes between
    while high - low > _READ:
        guess = low + (high - low) * (wanted - first) // (last - first)
        begin = max(low, min(guess - _READ // 2, high - _READ))
        hashes = entries(begin, begin + _READ)["hash"]
        smallest, largest = int(hashes[0]), int(hashes[-1])
        if largest < wanted:
            low, first = begin + _READ, largest
        elif smallest >= wanted:
            high, last = begin, smallest
        else:
            low, high = begin, begin + _READ
    found: list[int] = []
    for start in range(low, count, _READ):
        part = entries(start, min(start + _READ, count))
        found += part["ordinal"][part["hash"] == np.uint64(wanted)].tolist()
        if part["hash"][-1] > wanted:
            break
    return found


def read_items(files: Files, kind: str, shard: int, dtype: np.dtype[Any], start: int, stop: int) -> NDArray[Any]:
    """Items [start, stop) of the array of `dtype` with which a file of a shard begins."""
    return np.frombuffer(files.read(kind, shard, start * dtype.itemsize, (stop - start) * dtype.itemsize), dtype)
