"""Documents, spans and concepts of many token ranges of a shard at once: a few large reads, no loop over the ranges.

What ShardReader gives for one range, as ragged arrays: `row` says which range an item belongs to. reader.py is the
definition; ranges that lie close together are read as one.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.read.files import Files
from conceptloader.format.read.reader import ShardReader
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, offsets_of

_HOLE_BYTES = 1 << 14


class Pieces(NamedTuple):
    """Items that touch ranges: the range, the item's number in the shard, and its tokens [first, end), not cut."""

    row: Ints
    number: Ints
    first: Ints
    end: Ints


def ragged(starts: Ints, lengths: Ints) -> Ints:
    """starts[0], starts[0] + 1, ..., for lengths[0] numbers, then those from starts[1] on, and so on."""
    if len(lengths) and (lengths == lengths[0]).all():
        return (starts[:, None] + np.arange(lengths[0])).reshape(-1)
    offsets = offsets_of(lengths)
    counted: Ints = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return counted


def gather(files: Files, kind: str, shard: int, dtype: Any, low: Ints, high: Ints, at: int = 0) -> NDArray[Any]:
    """Items [low[i], high[i]) of the array of `dtype` at byte `at` of a file, end to end. low: in any order."""
    dtype = np.dtype(dtype)
    if not len(low):
        return np.zeros(0, dtype)
    first, last = low.min(keepdims=True), high.max(keepdims=True)
    if last[0] - first[0] > 4 * (high - low).sum():  # else all of it is read, and nothing has to be sorted
        order = np.argsort(low, kind="stable")
        begin, end = low[order], np.maximum.accumulate(high[order])
        cuts = np.flatnonzero(begin[1:] - end[:-1] > _HOLE_BYTES // dtype.itemsize) + 1
        first, last = begin[np.append(0, cuts)], end[np.append(cuts - 1, len(end) - 1)]
    parts = [
        files.read(kind, shard, at + a * dtype.itemsize, (b - a) * dtype.itemsize)
        for a, b in zip(first.tolist(), last.tolist(), strict=True)
    ]
    items = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype)
    shift = offsets_of(last - first)[:-1] - first
    place = low + (shift if len(first) == 1 else shift[np.searchsorted(first, low, side="right") - 1])
    return items[ragged(place, high - low)]


def documents_of(reader: ShardReader, shard: int, start: Ints, stop: Ints) -> Pieces:
    """The documents that hold tokens of the ranges [start, stop) of a shard, none of them empty."""
    count, tokens = int(reader.table.documents[shard]), int(reader.table.tokens[shard])
    if not count:
        rows = np.arange(len(start))
        return Pieces(rows, np.full(len(rows), -1), np.zeros_like(start), np.full_like(start, tokens))
    low, high = _blocks(reader, "documents.bin", shard, count, start, stop)
    until = np.minimum(high + 2, count + 1)
    first = gather(reader.files, "documents.bin", shard, fmt.OFFSET, low, until).astype(np.int64)
    return _touching(reader, "documents.bin", shard, start, stop, low, until, first)


def spans_of(reader: ShardReader, shard: int, track: str, start: Ints, stop: Ints) -> tuple[Pieces, Ints]:
    """The spans of a track that hold tokens of the ranges, and the record of each; gaps are left out.

    Of a dense track, whose runs are only known by reading all of its tokens, spans are cut to the range.
    """
    facts = reader.table.tracks[track]
    if facts.encoding[shard] != fmt.SPANS:
        return _read_each(reader, shard, track, start, stop)
    kind, entries, tokens = f"{track}.spans", int(facts.entries[shard]), int(reader.table.tokens[shard])
    low, high = _blocks(reader, kind, shard, entries, start, stop)
    until = np.minimum(high + 2, entries)
    found = gather(reader.files, kind, shard, fmt.ENTRY, low, until)
    # The last entry ends with the shard: as if one more began there.
    closed = np.flatnonzero(high + 2 > entries)
    at = offsets_of(until - low)[1:][closed]
    first = np.insert(found["first"].astype(np.int64), at, tokens)
    record = np.insert(found["record"].astype(np.int64), at, fmt.NO_RECORD)
    until = until + (high + 2 > entries)
    pieces = _touching(reader, kind, shard, start, stop, low, until, first)
    begin = offsets_of(until - low)[:-1][pieces.row] + pieces.number - low[pieces.row]
    records = record[begin]
    real = records != fmt.NO_RECORD
    if (records[real] >= int(facts.records[shard])).any():
        raise reader.bad(kind, shard, f"record {records[real].max()}", f"numbers below {facts.records[shard]}")
    return Pieces(*(part[real] for part in pieces)), records[real]


def concepts_of(reader: ShardReader, shard: int, track: str, records: Ints, num_ids: int) -> tuple[Ints, Ints]:
    """Concept ids of records of codec "concepts": (offsets [n + 1], ids), those of record i at [offsets[i], ...)."""
    files, total = reader.files, int(reader.table.files[f"{track}.data"].size[shard])
    pairs = gather(files, f"{track}.index", shard, fmt.OFFSET, records, records + 2).astype(np.int64).reshape(-1, 2)
    codec = reader.manifest.tracks[track].concepts
    if ((pairs % codec.item).any() or (pairs[:, 0] > pairs[:, 1]).any() or (pairs > total).any()) and len(pairs):
        rule = f"multiples of {codec.item} up to {total}, rising"
        raise reader.bad(f"{track}.index", shard, "offsets of no records", rule)
    begin, counts = pairs[:, 0], (pairs[:, 1] - pairs[:, 0]) // codec.item
    if codec.scores is None:
        begin = begin // codec.item
        ids = gather(files, f"{track}.data", shard, codec.ids, begin, begin + counts)
    else:  # behind the ids of a record lie their scores
        ids = gather(files, f"{track}.data", shard, "u1", begin, begin + counts * codec.ids.itemsize).view(codec.ids)
    ids = ids.astype(np.int64)
    if len(ids) and int(ids.max()) >= num_ids:
        raise reader.bad(f"{track}.data", shard, f"concept id {ids.max()}", f"ids below {num_ids}, the vocabulary's")
    return offsets_of(counts), ids


def scores_of(reader: ShardReader, shard: int, track: str, records: Ints) -> NDArray[np.float64]:
    """The scores beside the ids that `concepts_of` gives for the same records, of a track that has them."""
    offsets = gather(reader.files, f"{track}.index", shard, fmt.OFFSET, records, records + 2).astype(np.int64)
    (begin, end), codec = offsets.reshape(-1, 2).T, reader.manifest.tracks[track].concepts
    assert codec.scores is not None
    behind = begin + (end - begin) // codec.item * codec.ids.itemsize
    return gather(reader.files, f"{track}.data", shard, "u1", behind, end).view(codec.scores).astype(np.float64)


def _blocks(reader: ShardReader, kind: str, shard: int, count: int, start: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """By the block table of `count` items: the first item of each range, and the last, or a later one."""
    at = 8 * (count + 1) if kind == "documents.bin" else fmt.ENTRY.itemsize * count
    size = reader.manifest.block_tokens
    first, last = start // size, -(-stop // size)
    table = gather(reader.files, kind, shard, fmt.OFFSET, first, last + 1, at).astype(np.int64)
    ends = np.cumsum(last + 1 - first)
    low, high = table[ends - (last + 1 - first)], table[ends - 1]
    if (low > high).any() or (low < 0).any() or (low >= count).any() or (high > count).any():
        raise reader.bad(kind, shard, "a block table that falls", f"rising numbers below {count}")
    return low, high


def _touching(
    reader: ShardReader, kind: str, shard: int, start: Ints, stop: Ints, low: Ints, until: Ints, first: Ints
) -> Pieces:
    """Of items low[i] to until[i] - 1, the last of which only closes the one before, those that touch range i."""
    lengths = until - low
    row, number = np.repeat(np.arange(len(low)), lengths), ragged(low, lengths)
    end = np.append(first[1:], 0)
    ends = np.cumsum(lengths) - 1
    falls = end < first
    falls[ends] = False
    tokens = int(reader.table.tokens[shard])
    if falls.any() or (first[ends - lengths + 1] > start).any() or (first[ends] < stop).any() or (first > tokens).any():
        raise reader.bad(kind, shard, "positions that fall or lie outside", f"rising positions in [0, {tokens}]")
    inside = (end > start[row]) & (first < stop[row]) & (end > first)
    inside[ends] = False
    return Pieces(row[inside], number[inside], first[inside], end[inside])


def _read_each(reader: ShardReader, shard: int, track: str, start: Ints, stop: Ints) -> tuple[Pieces, Ints]:
    found = [reader.runs(shard, track, a, b) for a, b in zip(start.tolist(), stop.tolist(), strict=True)]
    row = np.repeat(np.arange(len(found)), [len(runs[0]) for runs in found])
    none = np.zeros(0, np.int64)
    first, end, record = (np.concatenate([none, *(runs[k] for runs in found)]).astype(np.int64) for k in (0, 1, 4))
    return Pieces(row, np.zeros_like(first), first, end), record
