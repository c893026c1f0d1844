"""Where spans lie in the token stream: from characters to tokens, overlaps resolved, eos appended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.bulk import BulkSpans
from conceptloader.ingest.batch import BadRow, Batch, Ints, Ragged, RawSpans, offsets_of
from conceptloader.ingest.columns import METADATA_TRACK
from conceptloader.ingest.overlap import resolve


@dataclass
class Placed:
    """A batch as the writer takes it. lost: spans that hold the first character of no token."""

    ids: list[str]
    tokens: Ragged
    spans: dict[str, BulkSpans]
    fields: Mapping[str, NDArray[Any]]
    lost: int


def level_names(track: str, overlap: str, levels: int) -> list[str]:
    """The tracks that hold the levels of a track; the first level keeps the name."""
    return [track, *(f"{track}_level{i}" for i in range(2, levels + 1))] if overlap == "levels" else [track]


def check_spans(spans: RawSpans, lengths: Ints, track: str, unit: str) -> None:
    """Every span lies within its document. Raises: BadRow."""
    wrong = (spans.start < 0) | (spans.end > lengths[spans.row])
    if wrong.any():
        i = int(np.argmax(wrong))
        row = int(spans.row[i])
        raise BadRow(
            row,
            f"{track}: found span [{spans.start[i]}, {spans.end[i]}), expected one within the {lengths[row]} {unit} "
            "of the document",
        )


def to_tokens(spans: RawSpans, lengths: Ints, tokens: Ints, positions: Ints) -> RawSpans:
    """Spans in characters to spans in tokens: a token belongs to the span that holds its first character.

    lengths: characters of each document; tokens: offsets of the documents' tokens, int64 [n + 1]; positions: of each
    token's first character within its document. Raises: BadRow if positions decrease.
    """
    base = offsets_of(lengths + 1)  # one more, so that the end of a document is not the start of the next
    row = np.repeat(np.arange(len(lengths)), np.diff(tokens))
    keys = positions + base[row]
    back = keys[1:] < keys[:-1]
    if back.any():
        raise BadRow(
            int(row[1:][np.argmax(back)]),
            "found a token that begins before the one before it, expected a tokenizer that keeps the order of the "
            "text; use another tokenizer, or tokenize first and give spans in tokens",
        )
    first = tokens[spans.row]
    start = np.searchsorted(keys, spans.start + base[spans.row]) - first
    end = np.searchsorted(keys, spans.end + base[spans.row]) - first
    return RawSpans(spans.row, start, end, spans.concepts)


def place(
    batch: Batch,
    tokens: Ragged,
    positions: Ints | None,
    eos: int | None,
    overlap: str,
    levels: int,
    dtype: Any = np.uint32,
) -> Placed:
    """tokens: of each document. positions: of each token's first character, for documents given as text.
    eos: the id to append to each document, which belongs to the document's last span. dtype: of the written tokens.

    Raises: BadRow.
    """
    lengths = np.diff(tokens.offsets)
    spans: dict[str, BulkSpans] = {}
    lost = 0
    for track, raw in batch.spans.items():
        if batch.texts is not None and positions is not None:
            characters = np.array([len(text) for text in batch.texts], np.int64)
            check_spans(raw, characters, track, "characters")
            raw = to_tokens(raw, characters, tokens.offsets, positions)
        else:
            check_spans(raw, lengths, track, "tokens")
        some = raw.start < raw.end
        lost += len(some) - int(some.sum())
        if not some.all():
            which = np.flatnonzero(some)
            raw = RawSpans(raw.row[which], raw.start[which], raw.end[which], raw.concepts.take(which))
        resolved = resolve(raw, overlap, levels)
        last = _last_ends(resolved, len(lengths))
        for name, level in zip(level_names(track, overlap, levels), resolved, strict=True):
            spans[name] = _finish(level, lengths, tokens.offsets, None if eos is None else last)
    fields = batch.fields
    if eos is not None:
        ends = tokens.offsets[1:]
        tokens = append_each(tokens, eos, dtype)
        fields = {name: _repeat_last(values, ends, lengths) for name, values in fields.items()}
    if batch.metadata is not None:
        spans[METADATA_TRACK] = _whole_documents(batch.metadata, tokens.offsets)
    return Placed(batch.ids, tokens, spans, fields, lost)


def check_ids(tokens: Ragged, limit: int) -> None:
    """Raises: BadRow for a token id outside [0, limit)."""
    values = tokens.values
    if len(values) and (int(values.min()) < 0 or int(values.max()) >= limit):
        i = int(np.argmax((values < 0) | (values >= limit)))
        row = int(np.searchsorted(tokens.offsets, i, "right")) - 1
        raise BadRow(
            row,
            f"found token {values[i]} at position {i - tokens.offsets[row]}, expected ids in [0, {limit}), the "
            "vocabulary of the tokenizer; the tokens are of another tokenizer",
        )


def append_each(lists: Ragged, value: int, dtype: Any) -> Ragged:
    """`value` appended to each list, as `dtype`."""
    n = len(lists)
    values = np.empty(len(lists.values) + n, dtype)
    offsets = lists.offsets + np.arange(n + 1)
    for i, (begin, end) in enumerate(zip(lists.offsets[:-1].tolist(), lists.offsets[1:].tolist(), strict=True)):
        values[begin + i : end + i] = lists.values[begin:end]
    values[offsets[1:] - 1] = value
    return Ragged(values, offsets)


def _repeat_last(values: NDArray[Any], ends: Ints, lengths: Ints) -> NDArray[Any]:
    """A token-aligned field for the eos of each document: the value of the token before it, 0 if there is none."""
    last = np.where(lengths > 0, values[np.maximum(ends - 1, 0)] if len(values) else 0, 0)
    return np.insert(values, ends, last)


def _last_ends(levels: list[RawSpans], documents: int) -> Ints:
    """int64 [documents]: where the span that ends last ends; -1 without spans."""
    last = np.full(documents, -1, np.int64)
    for level in levels:
        np.maximum.at(last, level.row, level.end)
    return last


def _finish(spans: RawSpans, lengths: Ints, offsets: Ints, last: Ints | None) -> BulkSpans:
    """Disjoint spans of documents to spans of the batch. With `last`, the eos of each document goes to the spans that
    end there: they grow by one token, or, with a gap before the eos, get one more run."""
    record = np.arange(len(spans.row))
    row, start, end = spans.row, spans.start, spans.end
    if last is not None:
        final = end == last[row]
        touching = final & (end == lengths[row])
        end = end + touching
        apart = np.flatnonzero(final & ~touching)
        if len(apart):
            at = apart + 1  # the last span of its document is followed by the next document's
            row = np.insert(row, at, spans.row[apart])
            start = np.insert(start, at, lengths[spans.row[apart]])
            end = np.insert(end, at, lengths[spans.row[apart]] + 1)
            record = np.insert(record, at, apart)
        offsets = offsets + np.arange(len(offsets))
    base = offsets[row]
    return BulkSpans(
        start=base + start,
        end=base + end,
        record=record,
        data=spans.concepts.values.astype("<u4").tobytes(),
        offsets=spans.concepts.offsets * 4,
    )


def _whole_documents(records: list[bytes], offsets: Ints) -> BulkSpans:
    """One record for each document that has a token."""
    some = np.flatnonzero(np.diff(offsets))
    kept = [records[i] for i in some.tolist()]
    return BulkSpans(
        start=offsets[some],
        end=offsets[some + 1],
        record=np.arange(len(some)),
        data=b"".join(kept),
        offsets=offsets_of([len(record) for record in kept]),
    )
