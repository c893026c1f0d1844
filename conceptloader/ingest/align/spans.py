"""Where spans lie in the token stream: from characters to tokens, overlaps resolved, eos appended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.spec.codecs import concept_records
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.manifest import level_names
from conceptloader.format.write.track import BulkSpans
from conceptloader.ingest.align.align import find_places
from conceptloader.ingest.align.overlap import resolve
from conceptloader.ingest.align.rules import SpanAlignment
from conceptloader.ingest.align.units import UNITS, Decode, check_texts, in_characters, lengths_in
from conceptloader.ingest.records.batch import BadRow, Ragged, RawSpans, RowBatch
from conceptloader.ingest.records.columns import METADATA_TRACK


@dataclass
class Placed:
    """A batch as the writer takes it.

    lost: of each track those of its spans, in order of rows, that got no token, as indices into the batch's.
    """

    ids: list[str]
    tokens: Ragged
    spans: dict[str, BulkSpans]
    fields: Mapping[str, NDArray[Any]]
    lost: dict[str, Ints]


def check_spans(spans: RawSpans, lengths: Ints, track: str, unit: str) -> None:
    """Every span lies within its document. Raises: BadRow."""
    wrong = (spans.start < 0) | (spans.end > lengths[spans.row])
    if wrong.any():
        i = int(np.argmax(wrong))
        row = int(spans.row[i])
        raise BadRow(
            row,
            f"{track}: found span [{spans.start[i]}, {spans.end[i]}), expected a span within the "
            f"{lengths[row]} {unit} of the document; the offsets are of another text, or in another "
            "unit (--span-unit)",
        )


def place(
    batch: RowBatch,
    tokens: Ragged,
    places: Ints | None,
    eos: int | None,
    rules: SpanAlignment,
    dtype: Any = np.uint32,
    decode: Decode | None = None,
) -> Placed:
    """tokens: of each document.

    places: of each token, see `TextTokenizer.encode`, for documents given as text. eos: the id to append to each
    document, or None. dtype: of the written tokens. decode: see `check_texts`.

    Raises: BadRow.
    """
    lengths = np.diff(tokens.offsets)
    spans, lost = place_spans(batch, tokens.offsets, places, np.full(len(lengths), eos is not None), rules, decode)
    fields = batch.fields
    if eos is not None:
        ends = tokens.offsets[1:]
        values = np.insert(tokens.values.astype(dtype, copy=False), ends, eos)
        tokens = Ragged(values, tokens.offsets + np.arange(len(lengths) + 1))
        fields = {name: _repeat_last(values, ends, lengths) for name, values in fields.items()}
    if batch.metadata is not None:
        spans[METADATA_TRACK] = _whole_documents(batch.metadata, tokens.offsets)
    spans |= {name: _whole_documents(records, tokens.offsets) for name, records in batch.numbers.items()}
    return Placed(batch.ids, tokens, spans, fields, lost)


def with_bos(placed: Placed, bos: int) -> Placed:
    """The same with the token `bos` in front of each document.

    A span of a whole document holds it; no other one does. Its fields are those of the document's first token, 0 if
    there is none.
    """
    offsets = placed.tokens.offsets
    first, stop = offsets[:-1], offsets[1:]
    spans = {}
    for track, bulk in placed.spans.items():
        row = np.searchsorted(first, bulk.start, "right") - 1
        part = (bulk.start != first[row]) | (bulk.end != stop[row])
        spans[track] = replace(bulk, start=bulk.start + row + part, end=bulk.end + row + 1)
    values = placed.tokens.values
    values = np.insert(values.astype(np.result_type(values, np.uint32), copy=False), first, bos)
    fields = {}
    for name, column in placed.fields.items():
        leading = np.where(first < stop, np.append(column, 0)[first], 0).astype(column.dtype)
        fields[name] = np.insert(column, first, leading)
    return replace(placed, tokens=Ragged(values, offsets + np.arange(len(offsets))), spans=spans, fields=fields)


def place_spans(
    batch: RowBatch,
    offsets: Ints,
    places: Ints | None,
    eos: NDArray[np.bool_],
    rules: SpanAlignment,
    decode: Decode | None = None,
) -> tuple[dict[str, BulkSpans], dict[str, Ints]]:
    """(spans of the batch in tokens, by track; those that were lost, see `Placed`).

    offsets: of the documents' tokens, without the eos that those marked in `eos` end with. decode: see `check_texts`.
    Raises: BadRow.
    """
    lengths = np.diff(offsets)
    found, limits, texts = None, lengths, batch.texts
    unit = "token" if texts is None or places is None else rules.span_unit or "character"
    if texts is not None and places is not None and any(len(raw.row) for raw in batch.spans.values()):
        decode = _decoder(texts, offsets, places)
        if unit != "token":
            found, limits = find_places(texts, offsets, places), lengths_in(texts, unit)
    spans: dict[str, BulkSpans] = {}
    lost: dict[str, Ints] = {}
    for track, raw in batch.spans.items():
        check_texts(texts, raw, unit, track, decode)
        check_spans(raw, limits, track, UNITS[unit].plural)
        if found is None or texts is None:
            start, end = raw.start, raw.end
        else:
            start, end = found.tokens_of(in_characters(texts, raw, unit, track), rules.align)
        if raw.whole is not None:  # tokens that stand for no character, too
            start, end = np.where(raw.whole, 0, start), np.where(raw.whole, (lengths + eos)[raw.row], end)
        some = start < end
        lost[track] = np.flatnonzero(~some)
        lost[track] = lost[track][np.argsort(raw.row[lost[track]], kind="stable")]
        placed = RawSpans(raw.row, start, end, raw.concepts)
        if not some.all():
            placed = placed.take(np.flatnonzero(some))
        resolved = resolve(placed, rules.overlap, rules.levels)
        for name, level in zip(level_names(track, rules.depth), resolved, strict=True):
            spans[name] = _finish(level, offsets, eos)
    return spans, lost


def _decoder(texts: Sequence[str], offsets: Ints, places: Ints) -> Decode:
    """The text at tokens of documents that are given as text."""

    def decode(row: int, start: int, end: int) -> str | None:
        if not 0 <= start < end <= offsets[row + 1] - offsets[row]:
            return None
        return texts[row][places[offsets[row] + start, 0] : places[offsets[row] + end - 1, 1]]

    return decode


def check_ids(tokens: Ragged, limit: int) -> None:
    """Raises: BadRow for a token id outside [0, limit)."""
    values = tokens.values
    if len(values) and (int(values.min()) < 0 or int(values.max()) >= limit):
        i = int(np.argmax((values < 0) | (values >= limit)))
        row = int(np.searchsorted(tokens.offsets, i, "right")) - 1
        raise BadRow(
            row,
            f"found token {values[i]} at position {i - tokens.offsets[row]}, expected ids in [0, {limit}), the "
            "vocabulary of the tokenizer; pass the --tokenizer that made the tokens",
        )


def _repeat_last(values: NDArray[Any], ends: Ints, lengths: Ints) -> NDArray[Any]:
    """A token-aligned field for the eos of each document: the value of the token before it, 0 if there is none."""
    last = np.where(lengths > 0, values[np.maximum(ends - 1, 0)] if len(values) else 0, 0)
    return np.insert(values, ends, last)


def _finish(spans: RawSpans, offsets: Ints, eos: NDArray[np.bool_]) -> BulkSpans:
    """Disjoint spans of documents to spans of the batch."""
    base = (offsets + offsets_of(eos))[spans.row]
    data, ends = concept_records(spans.concepts.values, spans.concepts.offsets)
    return BulkSpans(
        start=base + spans.start, end=base + spans.end, record=np.arange(len(spans.row)), data=data, offsets=ends
    )


def _whole_documents(records: Sequence[bytes | None], offsets: Ints) -> BulkSpans:
    """One record for each document that has a token, and a record."""
    some = np.flatnonzero((np.diff(offsets) > 0) & np.array([record is not None for record in records], bool))
    kept = [record for i in some.tolist() if (record := records[i]) is not None]
    return BulkSpans(
        start=offsets[some],
        end=offsets[some + 1],
        record=np.arange(len(some)),
        data=b"".join(kept),
        offsets=offsets_of([len(record) for record in kept]),
    )
