"""Finding documents by the ids that they had in the input: a sorted table of hashes per shard, read in few places."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isqrt

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.format.read.bulk import gather, read_items
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.read.reader import ShardReader
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, offsets_of

MISSING, AMBIGUOUS = -1, -2
_READ = 1 << 18  # entries of a hash table, or ids, read at a time


def find_many(ds: Ranges, ids: Sequence[str]) -> Ints:
    """int64 [len(ids)]: the number of the document with each id, MISSING, or AMBIGUOUS if several have it."""
    numbers = dict.fromkeys(ids, MISSING)
    for shard, ordinal, text in find_each(ds.reader, ids):
        known = numbers[text] != MISSING
        numbers[text] = AMBIGUOUS if known else ds.first_documents[shard] + ordinal
    return np.array([numbers[text] for text in ids], np.int64)


def find_each(reader: ShardReader, ids: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """(shard, ordinal in it, id) of all documents that have one of these ids, in order; "" is none."""
    wanted = {*ids} - {""}
    hashes = np.sort(np.array([xxhash.xxh3_64_intdigest(text.encode("utf-8")) for text in wanted], np.uint64))
    for shard in np.flatnonzero(reader.table.files["documents.hash"].size > 0).tolist():
        ordinals = np.sort(np.concatenate([np.zeros(0, np.int64), *_candidates(reader, shard, hashes)]))
        ordinals = ordinals[(ordinals >= 0) & (ordinals < reader.table.documents[shard])]
        for ordinal, text in _named(reader, shard, ordinals):
            if text in wanted:
                yield shard, ordinal, text


def _candidates(reader: ShardReader, shard: int, hashes: NDArray[np.uint64]) -> Iterator[Ints]:
    """Ordinals of the documents whose hash is one of `hashes`, which are sorted.

    Hashes are uniform: that of rank r of n is off its place by sqrt(n) / 2 in the mean. Where it is further off, or the
    same hash is there many times, more is read.
    """
    count = int(reader.table.files["documents.hash"].size[shard]) // fmt.HASH_ENTRY.itemsize

    def entries(start: int, stop: int) -> NDArray[np.void]:
        return read_items(reader.files, "documents.hash", shard, fmt.HASH_ENTRY, start, stop)

    margin = 2 * isqrt(count) + 8
    place = (hashes / 2.0**64 * count).astype(np.int64)
    low, high = np.maximum(place - margin, 0), np.minimum(place + margin, count)
    for some in np.split(np.arange(len(hashes)), np.flatnonzero(low[1:] > high[:-1]) + 1) if len(hashes) else ():
        wanted, start, stop = hashes[some], int(low[some[0]]), int(high[some[-1]])
        step = margin
        while start > 0 and entries(start, start + 1)["hash"][0] >= wanted[0]:
            start, step = max(0, start - step), 2 * step
        while stop < count and entries(stop - 1, stop)["hash"][0] <= wanted[-1]:
            stop, step = min(count, stop + step), 2 * step
        for first in range(start, stop, _READ):
            table = entries(first, min(first + _READ, stop))
            at = np.minimum(np.searchsorted(wanted, table["hash"]), len(wanted) - 1)
            yield table["ordinal"][wanted[at] == table["hash"]].astype(np.int64)


def _named(reader: ShardReader, shard: int, ordinals: Ints) -> Iterator[tuple[int, str]]:
    """(ordinal, external id) of documents, which ascend."""
    base = 8 * (int(reader.table.documents[shard]) + 1)
    total = int(reader.table.files["documents.ids"].size[shard]) - base
    for start in range(0, len(ordinals), _READ):
        part = ordinals[start : start + _READ]
        offsets = gather(reader.files, "documents.ids", shard, fmt.OFFSET, part, part + 2).astype(np.int64)
        if (np.diff(offsets) < 0).any() or (offsets[-1:] > total).any():
            raise reader.bad("documents.ids", shard, "descending offsets", f"ascending ones up to {total}")
        low, high = offsets[::2], offsets[1::2]
        text = gather(reader.files, "documents.ids", shard, "u1", low, high, base).tobytes()
        for ordinal, (a, b) in zip(part.tolist(), pairwise(offsets_of(high - low).tolist()), strict=True):
            yield ordinal, text[a:b].decode("utf-8", "replace")
