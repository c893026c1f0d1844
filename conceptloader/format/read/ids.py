"""Finding documents by the ids that they had in the input: a sorted table of hashes per shard, read in few places."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isqrt

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.format.read.bulk import gather, read_items
from conceptloader.format.read.files import Files
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, offsets_of

MISSING, AMBIGUOUS = -1, -2
_READ = 1 << 18  # entries of a hash table, or ids, read at a time


def find_many(files: Files, ids: Sequence[str]) -> Ints:
    """int64 [len(ids)]: the number of the document with each id, MISSING, or AMBIGUOUS if several have it."""
    found = dict[str, int]()
    for shard, ordinal, text in find_each(files, ids):
        found[text] = AMBIGUOUS if text in found else int(files.table.first_documents[shard]) + ordinal
    return np.array([found.get(text, MISSING) for text in ids], np.int64)


def find_each(files: Files, ids: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """(shard, ordinal in it, id) of all documents that have one of these ids, in order; "" is none."""
    wanted = {text.encode("utf-8") for text in ids} - {b""}
    hashes = np.sort(hash_ids(list(wanted)))
    for shard in _shards(files):
        ordinals = np.sort(np.concatenate([np.zeros(0, np.int64), *_candidates(files, shard, hashes)]))
        for ordinal, text in zip(ordinals.tolist(), _texts(files, shard, ordinals), strict=True):
            if text in wanted:
                yield shard, ordinal, text.decode("utf-8")


def id_of(files: Files, shard: int, ordinal: int) -> str | None:
    """The id of a document, None if it has none."""
    if files.table.files["documents.ids"].size[shard] < 0:
        return None
    (text,) = _texts(files, shard, np.array([ordinal]))
    try:
        return text.decode("utf-8") or None
    except UnicodeDecodeError as error:
        raise files.bad("documents.ids", shard, f"an id that is not UTF-8 ({error})", "UTF-8") from error


def hash_ids(data: Sequence[bytes]) -> NDArray[np.uint64]:
    return np.array([xxhash.xxh3_64_intdigest(one) for one in data], np.uint64)


def _shards(files: Files) -> list[int]:
    """Those whose documents have ids."""
    found: list[int] = np.flatnonzero(files.table.files["documents.hash"].size > 0).tolist()
    return found


def _candidates(files: Files, shard: int, hashes: NDArray[np.uint64]) -> Iterator[Ints]:
    """Ordinals of documents whose hash is one of `hashes`, which are sorted.

    Hashes are uniform: that of rank r of n is off its place by sqrt(n) / 2 in the mean. Where it is further off, or the
    same hash is there many times, more is read.
    """
    count = int(files.table.files["documents.hash"].size[shard]) // fmt.HASH_ENTRY.itemsize

    def entries(start: int, stop: int) -> NDArray[np.void]:
        return read_items(files, "documents.hash", shard, fmt.HASH_ENTRY, start, stop)

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
            found = np.flatnonzero((wanted[at] == table["hash"]) & (table["ordinal"] < files.table.documents[shard]))
            yield table["ordinal"][found].astype(np.int64)


def each_id(files: Files) -> Iterator[tuple[int, Ints, NDArray[np.uint8]]]:
    """(number of the first, offsets of their ids, these end to end) of some documents after others; "" is none."""
    for shard in _shards(files):
        first, documents = int(files.table.first_documents[shard]), int(files.table.documents[shard])
        for start in range(0, documents, _READ):
            ordinals = np.arange(start, min(start + _READ, documents))
            yield first + start, *_stored(files, shard, ordinals)


def _texts(files: Files, shard: int, ordinals: Ints) -> list[bytes]:
    """External ids of documents."""
    offsets, data = _stored(files, shard, ordinals)
    text = data.tobytes()
    return [text[a:b] for a, b in pairwise(offsets.tolist())]


def _stored(files: Files, shard: int, ordinals: Ints) -> tuple[Ints, NDArray[np.uint8]]:
    """(offsets, bytes end to end) of the external ids of documents."""
    base = 8 * (int(files.table.documents[shard]) + 1)
    total = int(files.table.files["documents.ids"].size[shard]) - base
    offsets = gather(files, "documents.ids", shard, fmt.OFFSET, ordinals, ordinals + 2).astype(np.int64)
    low, high = offsets[::2], offsets[1::2]
    if (high < low).any() or (high > total).any():
        raise files.bad("documents.ids", shard, "descending offsets", f"ascending ones up to {total}")
    return offsets_of(high - low), gather(files, "documents.ids", shard, "u1", low, high, base)
