"""Documents, spans and records of many token ranges of a shard at once: a few large reads, no loop over the ranges.

What is found are ragged arrays: `row` says which range an item belongs to. Ranges that lie close together are read as
one. It is the reference for the compiled one.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.read.files import Files
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


def pairs(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """(i, j) for all j from low[i] to high[i] - 1, in order of i."""
    counts = np.maximum(high - low, 0)
    return np.repeat(np.arange(len(low)), counts), ragged(low, counts)


def equal_pairs(values: Ints, ascending: Ints) -> tuple[Ints, Ints]:
    """(i, j) for all j of which ascending[j] is values[i], in order of i."""
    return pairs(np.searchsorted(ascending, values), np.searchsorted(ascending, values, side="right"))


def _fetch(
    files: Files, kind: str, shard: int, dtype: "np.dtype[Any]", low: Ints, high: Ints, at: int
) -> tuple[NDArray[Any], Ints]:
    """Items that hold the ranges [low[i], high[i]) of an array in a file, and where each range begins in these."""
    if not len(low):
        return np.zeros(0, dtype), low
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
    return items, low + (shift if len(first) == 1 else shift[np.searchsorted(first, low, side="right") - 1])


def gather(files: Files, kind: str, shard: int, dtype: Any, low: Ints, high: Ints, at: int = 0) -> NDArray[Any]:
    """Items [low[i], high[i]) of the array of `dtype` at byte `at` of a file, end to end. low: in any order."""
    items, place = _fetch(files, kind, shard, np.dtype(dtype), low, high, at)
    return items if len(low) == 1 else items[ragged(place, high - low)]


def read_items(files: Files, kind: str, shard: int, dtype: np.dtype[Any], start: int, stop: int) -> NDArray[Any]:
    """Items [start, stop) of the array of `dtype` with which a file of a shard begins."""
    return np.frombuffer(files.read(kind, shard, start * dtype.itemsize, (stop - start) * dtype.itemsize), dtype)


def starts_in(files: Files, shard: int) -> Ints:
    """Tokens of a shard that begin a document, ascending; its first one if it has no documents."""
    documents, first = int(files.table.documents[shard]), np.zeros(1, np.int64)
    if documents:
        first = read_items(files, "documents.bin", shard, fmt.OFFSET, 0, documents).astype(np.int64)
    steps = np.diff(first, prepend=-1)
    if (steps < 0).any():
        raise fmt.bad(files.path("documents.bin", shard), "starts that fall", "starts that do not", fmt.DAMAGED)
    return first[(steps > 0) & (first < int(files.table.tokens[shard]))]  # an empty document begins where the next does


def items_of(files: Files, shard: int, start: Ints, stop: Ints) -> NDArray[np.void]:
    """The items of the stream of token ranges, end to end, as on disk."""
    layout = files.manifest.layouts[files.table.layout[shard]]
    offset = int(files.table.offset[shard])
    return gather(files, "stream.bin", shard, layout.dtype, start, stop, offset)


def wider(files: Files, shard: int, start: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """Token ranges with a token more on either side, which shows whether spans of a dense track continue there."""
    return np.maximum(start - 1, 0), np.minimum(stop + 1, files.table.tokens[shard])


def check_tokens(files: Files, shard: int, start: Ints, stop: Ints, tokens: NDArray[Any]) -> None:
    """Refuse token ids that the dataset cannot have. tokens: those of the ranges, end to end."""
    limit = files.manifest.num_ids
    if tokens.dtype.kind == "u" and limit >= 1 << 8 * tokens.dtype.itemsize:
        return  # the type holds no other
    wrong = (tokens < 0) | (tokens >= limit)
    if wrong.any():
        at = int(np.argmax(wrong))
        token, before = int(ragged(start, stop - start)[at]), int(files.table.tokens[:shard].sum())
        place = f"token {token} of shard {shard}, token {before + token} of the dataset"
        why = "the vocabulary" if files.manifest.tokenizer else "as no tokenizer is known"
        raise files.bad("stream.bin", shard, f"id {int(tokens[at])} as {place}", f"ids in [0, {limit}), {why}")


def documents_of(files: Files, shard: int, start: Ints, stop: Ints) -> Pieces:
    """The documents that hold tokens of the ranges [start, stop) of a shard, none of them empty.

    Empty documents hold none. Without a document table: one for each range, of number -1.
    """
    count, tokens = int(files.table.documents[shard]), int(files.table.tokens[shard])
    if not count:
        rows = np.arange(len(start))
        return Pieces(rows, np.full(len(rows), -1), np.zeros_like(start), np.full_like(start, tokens))
    low, high = _blocks(files, "documents.bin", shard, count, start, stop)
    until = np.minimum(high + 2, count + 1)
    first = gather(files, "documents.bin", shard, fmt.OFFSET, low, until).astype(np.int64)
    return _touching(files, "documents.bin", shard, start, stop, low, until, first)


def document_ranges(files: Files, shard: int, ordinals: Ints) -> tuple[Ints, Ints]:
    """First tokens and ends, in the shard, of documents, by their ordinals there."""
    found = gather(files, "documents.bin", shard, fmt.OFFSET, ordinals, ordinals + 2).astype(np.int64)
    first, stop = found[::2], found[1::2]
    if ((first < 0) | (first > stop) | (stop > files.table.tokens[shard])).any():
        raise files.bad("documents.bin", shard, "starts that decrease or lie outside", "ascending ones")
    return first, stop


def spans_of(
    files: Files, shard: int, track: str, start: Ints, stop: Ints, items: NDArray[np.void] | None = None
) -> tuple[Pieces, Ints]:
    """The spans of a track that hold tokens of the ranges, and the record of each; gaps are omitted.

    Of a dense track spans are cut to the range and a token more on either side, where they may continue. items: what
    `items_of` gave for these wider ranges, which saves reading them.
    """
    facts = files.table.tracks[track]
    encoding, records = facts.encoding[shard], int(facts.records[shard])
    if encoding is None or not len(start):
        return Pieces(*[np.zeros(0, np.int64)] * 4), np.zeros(0, np.int64)
    if encoding == fmt.DENSE:
        kind, (pieces, record) = "stream.bin", _dense(files, shard, track, start, stop, items)
    else:
        kind, (pieces, record) = f"{track}.spans", _entries(files, shard, track, start, stop)
    real = record != fmt.NO_RECORD
    if (record[real] >= records).any():
        found = f"record {record[real].max()} of track {track}"
        raise files.bad(kind, shard, found, f"numbers below {records}")
    return Pieces(*(part[real] for part in pieces)), record[real]


def _entries(files: Files, shard: int, track: str, start: Ints, stop: Ints) -> tuple[Pieces, Ints]:
    kind, tokens = f"{track}.spans", int(files.table.tokens[shard])
    count = int(files.table.tracks[track].entries[shard])
    low, high = _blocks(files, kind, shard, count, start, stop)
    until = np.minimum(high + 2, count)
    found = gather(files, kind, shard, fmt.ENTRY, low, until)
    # The last entry ends with the shard: as if one more began there.
    closed = np.flatnonzero(high + 2 > count)
    at = offsets_of(until - low)[1:][closed]
    first = np.insert(found["first"].astype(np.int64), at, tokens)
    record = np.insert(found["record"].astype(np.int64), at, fmt.NO_RECORD)
    until = until + (high + 2 > count)
    pieces = _touching(files, kind, shard, start, stop, low, until, first)
    return pieces, record[offsets_of(until - low)[:-1][pieces.row] + pieces.number - low[pieces.row]]


def _dense(
    files: Files, shard: int, track: str, start: Ints, stop: Ints, items: NDArray[np.void] | None
) -> tuple[Pieces, Ints]:
    low, high = wider(files, shard, start, stop)
    if items is None:
        items = items_of(files, shard, low, high)
    ids, row = items[fmt.dense_field(track)], np.repeat(np.arange(len(low)), high - low)
    at = np.append(0, np.flatnonzero((ids[1:] != ids[:-1]) | (row[1:] != row[:-1])) + 1)
    token = low[row[at]] + at - offsets_of(high - low)[row[at]]
    end = token + np.diff(at, append=len(ids))
    pieces = Pieces(row[at], np.zeros_like(at), token, end)
    inside = (end > start[pieces.row]) & (token < stop[pieces.row])
    return Pieces(*(part[inside] for part in pieces)), ids[at[inside]].astype(np.int64)


def whole_spans(
    files: Files, shard: int, track: str, low: int, high: int, step: int
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """(start, end, record) of the spans in tokens [low, high), read `step` tokens at a time, none cut in between."""
    begun: int | None = None  # where the span began that goes on beyond the tokens read so far
    for at in range(low, high, step):
        stop = min(at + step, high)
        spans, record = spans_of(files, shard, track, np.array([at]), np.array([stop]))
        if not len(record):
            continue
        start, end = np.maximum(spans.first, at), np.minimum(spans.end, stop)
        if begun is not None:
            start[0] = begun
        begun = int(start[-1]) if spans.end[-1] > stop and stop < high else None
        whole = len(start) - (begun is not None)
        yield start[:whole], end[:whole], record[:whole]


def records_of(files: Files, shard: int, track: str, numbers: Ints) -> list[memoryview]:
    """The bytes of the records `numbers`, in that order, views into one buffer."""
    wanted, order = np.unique(numbers, return_inverse=True)
    begin, end = _record_places(files, shard, track, wanted)
    if (begin[1:] < end[:-1]).any():
        raise files.bad(f"{track}.index", shard, "descending offsets", "ascending offsets")
    data, place = _fetch(files, f"{track}.data", shard, np.dtype("u1"), begin, end, 0)
    view, ends = data.data, place + end - begin
    views = [view[a:b] for a, b in zip(place.tolist(), ends.tolist(), strict=True)]
    return [views[i] for i in order.tolist()]


def concepts_of(files: Files, shard: int, track: str, records: Ints, num_ids: int) -> tuple[Ints, Ints]:
    """Concept ids of records of codec "concepts": (offsets [n + 1], ids), those of record i at [offsets[i], ...)."""
    files, codec = files, files.concepts(track)
    begin, end = _record_places(files, shard, track, records, codec.item)
    counts = (end - begin) // codec.item
    if codec.scores is None:
        begin = begin // codec.item
        ids = gather(files, f"{track}.data", shard, codec.ids, begin, begin + counts)
    else:  # after the ids of a record come their scores
        ids = gather(files, f"{track}.data", shard, "u1", begin, begin + counts * codec.ids.itemsize).view(codec.ids)
    ids = ids.astype(np.int64)
    if len(ids) and int(ids.max()) >= num_ids:
        raise files.bad(f"{track}.data", shard, f"concept id {ids.max()}", f"ids below {num_ids}, the vocabulary's")
    return offsets_of(counts), ids


def scores_of(files: Files, shard: int, track: str, records: Ints) -> NDArray[np.float64]:
    """The scores of the ids that `concepts_of` returns for the same records, of a track that has them."""
    codec = files.concepts(track)
    assert codec.scores is not None
    begin, end = _record_places(files, shard, track, records, codec.item)
    first = begin + (end - begin) // codec.item * codec.ids.itemsize
    return gather(files, f"{track}.data", shard, "u1", first, end).view(codec.scores).astype(np.float64)


def _record_places(files: Files, shard: int, track: str, records: Ints, item: int = 1) -> tuple[Ints, Ints]:
    """Where records begin and end in their file. item: bytes that a record has a multiple of."""
    kind, total = f"{track}.index", int(files.table.files[f"{track}.data"].size[shard])
    begin, end = gather(files, kind, shard, fmt.OFFSET, records, records + 2).astype(np.int64).reshape(-1, 2).T
    if ((begin % item != 0) | (end % item != 0) | (begin > end) | (begin < 0) | (end > total)).any():
        found = f"offsets {begin.min()} to {end.max()}"
        raise files.bad(kind, shard, found, f"ascending multiples of {item} up to {total}")
    return begin, end


def _blocks(files: Files, kind: str, shard: int, count: int, start: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """By the block table of `count` items: the first item of each range, and the last, or a later one."""
    at = 8 * (count + 1) if kind == "documents.bin" else fmt.ENTRY.itemsize * count
    size = files.manifest.block_tokens
    first, last = start // size, -(-stop // size)
    table = gather(files, kind, shard, fmt.OFFSET, first, last + 1, at).astype(np.int64)
    ends = np.cumsum(last + 1 - first)
    low, high = table[ends - (last + 1 - first)], table[ends - 1]
    high = np.where((high < 0) | (high > count), count, high)  # as for kernels: then everything to the end is looked at
    if (low > high).any() or (low < 0).any() or (low >= count).any():
        raise files.bad(
            kind, shard, f"block table entries {low.min()} to {high.max()}", f"ascending numbers below {count}"
        )
    return low, high


def _touching(
    files: Files, kind: str, shard: int, start: Ints, stop: Ints, low: Ints, until: Ints, first: Ints
) -> Pieces:
    """Of items low[i] to until[i] - 1, the last of which only closes the one before, those that touch range i."""
    lengths = until - low
    row, number = pairs(low, until)
    end = np.append(first[1:], 0)
    ends = np.cumsum(lengths) - 1
    falls = end < first if kind == "documents.bin" else end <= first
    falls[ends] = False
    tokens = int(files.table.tokens[shard])
    outside = (first[ends - lengths + 1] > start).any() or (first[ends] < stop).any()
    if falls.any() or outside or first.min() < 0 or first.max() > tokens:
        found = f"positions {first.min()} to {first.max()} for tokens {start.min()} to {stop.max()}"
        raise files.bad(kind, shard, found, f"ascending positions in [0, {tokens}] that enclose these")
    inside = (end > start[row]) & (first < stop[row]) & (end > first)
    inside[ends] = False
    return Pieces(row[inside], number[inside], first[inside], end[inside])
