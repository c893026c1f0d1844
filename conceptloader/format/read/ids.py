"""The numbers of many documents by their external ids, at the cost of one pass over the tables of hashes."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.format.read.bulk import gather
from conceptloader.format.read.lookup import find_in_shard, read_items
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, offsets_of

MISSING, AMBIGUOUS = -1, -2
_READ = 1 << 18  # entries of a hash table read at a time
_PASS = 2000  # a pass over a table is worth it for one id in this many entries


def find_many(ds: Ranges, ids: Sequence[str]) -> Ints:
    """int64 [len(ids)]: the number of the document with each id, MISSING, or AMBIGUOUS if several have it."""
    numbers = dict.fromkeys(ids, MISSING)
    hashes = np.sort(np.array([xxhash.xxh3_64_intdigest(text.encode("utf-8")) for text in numbers], np.uint64))
    column = ds.manifest.shards.files["documents.hash"]
    for shard in np.flatnonzero(column.size > 0).tolist():
        entries = int(column.size[shard]) // fmt.HASH_ENTRY.itemsize
        found: Iterator[tuple[int, str]]
        if entries > _PASS * len(numbers):
            found = ((n, text) for text in list(numbers) for n in find_in_shard(ds.reader, shard, text))
        else:
            found = _named(ds, shard, _candidates(ds, shard, entries, hashes))
        for ordinal, text in found:
            if text in numbers:  # else another id with the same hash
                known = numbers[text] != MISSING
                numbers[text] = AMBIGUOUS if known else ds.first_documents[shard] + ordinal
    return np.array([numbers[text] for text in ids], np.int64)


def _candidates(ds: Ranges, shard: int, entries: int, hashes: NDArray[np.uint64]) -> Ints:
    """Ordinals, ascending, of the documents of a shard whose hash is one of `hashes` (sorted)."""
    parts = [np.empty(0, np.int64)]
    for start in range(0, entries, _READ):
        stop = min(start + _READ, entries)
        table = read_items(ds.files, "documents.hash", shard, fmt.HASH_ENTRY, start, stop)
        at = np.minimum(np.searchsorted(hashes, table["hash"]), len(hashes) - 1)
        parts.append(table["ordinal"][hashes[at] == table["hash"]].astype(np.int64))
    ordinals: Ints = np.sort(np.concatenate(parts))
    known: Ints = ordinals[ordinals < ds.manifest.shards.documents[shard]]
    return known


def _named(ds: Ranges, shard: int, ordinals: Ints) -> Iterator[tuple[int, str]]:
    """(ordinal, external id) of documents, which ascend."""
    base = 8 * (int(ds.manifest.shards.documents[shard]) + 1)
    for start in range(0, len(ordinals), _READ):
        part = ordinals[start : start + _READ]
        offsets = gather(ds.files, "documents.ids", shard, fmt.OFFSET, part, part + 2).astype(np.int64)
        if (np.diff(offsets) < 0).any():
            raise fmt.bad(ds.files.path("documents.ids", shard), "decreasing offsets", "rising ones", fmt.DAMAGED)
        low, high = offsets[::2], offsets[1::2]
        text = gather(ds.files, "documents.ids", shard, "u1", low, high, base).tobytes()
        for ordinal, (a, b) in zip(part.tolist(), pairwise(offsets_of(high - low).tolist()), strict=True):
            yield ordinal, text[a:b].decode("utf-8", "replace")
