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
    data = [text.encode("utf-8") for text in ids]
    hashes, first, which = np.unique(hash_ids(data), return_index=True, return_inverse=True)
    numbers, times = np.full(len(hashes), MISSING), np.zeros(len(hashes), np.int64)
    asked = [data[i] for i in first.tolist()]
    for shard in _shards(ds.reader):
        for ordinals, at in _candidates(ds.reader, shard, hashes):
            texts = _texts(ds.reader, shard, ordinals)
            same = np.array([text == asked[i] != b"" for text, i in zip(texts, at.tolist(), strict=True)], bool)
            numbers[at[same]] = ds.first_documents[shard] + ordinals[same]
            np.add.at(times, at[same], 1)
    numbers = np.where(times > 1, AMBIGUOUS, numbers)[which]
    others = [i for i, k in enumerate(which.tolist()) if data[i] != asked[k]]  # of a hash that another one has, too
    if others:
        numbers[others] = find_many(ds, [ids[i] for i in others])
    return numbers


def find_each(reader: ShardReader, ids: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """(shard, ordinal in it, id) of all documents that have one of these ids, in order; "" is none."""
    wanted = {text.encode("utf-8") for text in ids} - {b""}
    hashes = np.sort(hash_ids(list(wanted)))
    for shard in _shards(reader):
        found = [ordinals for ordinals, _ in _candidates(reader, shard, hashes)]
        ordinals = np.sort(np.concatenate([np.zeros(0, np.int64), *found]))
        for ordinal, text in zip(ordinals.tolist(), _texts(reader, shard, ordinals), strict=True):
            if text in wanted:
                yield shard, ordinal, text.decode("utf-8")


def hash_ids(data: Sequence[bytes]) -> NDArray[np.uint64]:
    return np.array([xxhash.xxh3_64_intdigest(one) for one in data], np.uint64)


def _shards(reader: ShardReader) -> list[int]:
    """Those whose documents have ids."""
    found: list[int] = np.flatnonzero(reader.table.files["documents.hash"].size > 0).tolist()
    return found


def _candidates(reader: ShardReader, shard: int, hashes: NDArray[np.uint64]) -> Iterator[tuple[Ints, Ints]]:
    """(ordinals of documents whose hash is one of `hashes`, which are sorted; of which of these).

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
            found = np.flatnonzero((wanted[at] == table["hash"]) & (table["ordinal"] < reader.table.documents[shard]))
            yield table["ordinal"][found].astype(np.int64), some[at[found]]


def each_id(ds: Ranges) -> Iterator[tuple[int, Ints, NDArray[np.uint8]]]:
    """(number of the first, offsets of their ids, these end to end) of some documents after others; "" is none."""
    for shard in _shards(ds.reader):
        first, documents = int(ds.first_documents[shard]), int(ds.reader.table.documents[shard])
        for start in range(0, documents, _READ):
            ordinals = np.arange(start, min(start + _READ, documents))
            yield first + start, *_stored(ds.reader, shard, ordinals)


def _texts(reader: ShardReader, shard: int, ordinals: Ints) -> list[bytes]:
    """External ids of documents."""
    offsets, data = _stored(reader, shard, ordinals)
    text = data.tobytes()
    return [text[a:b] for a, b in pairwise(offsets.tolist())]


def _stored(reader: ShardReader, shard: int, ordinals: Ints) -> tuple[Ints, NDArray[np.uint8]]:
    """(offsets, bytes end to end) of the external ids of documents."""
    base = 8 * (int(reader.table.documents[shard]) + 1)
    total = int(reader.table.files["documents.ids"].size[shard]) - base
    offsets = gather(reader.files, "documents.ids", shard, fmt.OFFSET, ordinals, ordinals + 2).astype(np.int64)
    low, high = offsets[::2], offsets[1::2]
    if (high < low).any() or (high > total).any():
        raise reader.bad("documents.ids", shard, "descending offsets", f"ascending ones up to {total}")
    return offsets_of(high - low), gather(reader.files, "documents.ids", shard, "u1", low, high, base)
