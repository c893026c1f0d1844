"""What is in tokens of a dataset, in a sample of a run, and the weights that it was drawn by, as lines of text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from conceptloader.base.terminal import counted, printable
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columnfile import BF16
from conceptloader.ingest.records.tokenizer import TextTokenizer
from conceptloader.order.segments import Segment
from conceptloader.trace import DocumentPart, SampleTrace, SpanPart
from conceptloader.trace.ranges import whole
from conceptloader.trace.samples import documents_of, spans_of

_RECORD = 1000  # characters of one, as text
_EXCERPT, _IDS, _ITEMS = 50, 24, 8  # of a span's text; token ids in a line; elements of a column's item


def describe(
    dataset: Dataset, start: int, stop: int, tokenizer: TextTokenizer | None, columns: Sequence[str]
) -> tuple[dict[str, Any], Iterator[str]]:
    """Tokens [start, stop), as JSON values and as lines of text. Positions are relative to `start`."""
    part, sample = whole(start, stop), dataset.read(start, stop, [])
    ids, documents = sample["tokens"].tolist(), list(documents_of(dataset, part))
    spans = {track: list(spans_of(dataset, part, track)) for track in sorted(dataset.chosen_tracks(None))}
    shown = {name: _column(dataset, name, start, stop) for name in columns}
    value = {
        "tokens": [start, stop],
        "token_ids": ids,
        "text": tokenizer.decode(ids) if tokenizer else None,
        "documents": [asdict(one) for one in documents],
        "fields": {name: sample[name].tolist() for name in dataset.field_names},
        "spans": {track: [asdict(one) for one in some] for track, some in spans.items()},
        **({"columns": shown} if shown else {}),
    }

    def lines() -> Iterator[str]:
        yield f"tokens {start:,} to {stop:,} ({stop - start:,})"
        yield from _document_lines(documents)
        if value["text"] is None:
            yield f"  token ids {' '.join(map(str, ids[:_IDS]))}{' ...' if len(ids) > _IDS else ''}"
        else:
            yield "text"
            yield from (f"  {printable(line)}" for line in value["text"].splitlines())
        for line, one in _span_lines(spans):
            text = f"  | {printable(tokenizer.decode(ids[one.start : one.end]), _EXCERPT)}" if tokenizer and one else ""
            yield line + text
        for name, column in shown.items():
            yield f"column {name}: {column['item']}"
            for place, (token, item) in enumerate(zip(ids, column["values"], strict=True)):
                yield f"  {place} of token {token}: {_first(item)}"

    return value, lines()


def weights_line(one: Segment) -> str:
    """Weights, and why if they were set live, as a line of text."""
    shares = ", ".join(f"{name} {share:.4g}" for name, share in one.shares.items())
    why = f", set live: {printable(one.why)}" if one.why else ""
    return f"weights from sample {one.at} on: {shares}{why}"


def sample_lines(one: SampleTrace) -> Iterator[str]:
    """What is in a sample, as lines of text."""
    places = [f"step {p.step}, micro batch {p.micro_batch}, rank {p.dp_rank}, slot {p.slot}" for p in one.places]
    if one.tokens is None:
        tokens = "not read: excluded" + ", or an empty pack" * (one.kind == "pack")
    else:
        within = "of tokens" if one.kind == "pack" else "tokens"
        tokens = f"{within} {one.tokens[0]} to {one.tokens[1] - 1}"
    window = f"{one.dataset}, {one.kind} {one.window} of epoch {one.epoch}"
    yield "; ".join([f"sample {one.sample}", *places, window, tokens])
    yield from _document_lines(one.documents)
    yield from (line for line, _ in _span_lines(one.spans))


def _document_lines(documents: Sequence[DocumentPart]) -> Iterator[str]:
    for part in documents:
        name = f"number {part.document}" if part.id is None else printable(part.id)
        parts = {"inputs": part.inputs, "labels": part.labels}
        told = ", ".join(f"{kind} {p[0]}:{p[1]}" for kind, p in parts.items() if p is not None)
        yield f"  document {name}: {told}{'' if part.begins else ', begun before'}"


def _span_lines(tracks: Mapping[str, Sequence[SpanPart]]) -> Iterator[tuple[str, SpanPart | None]]:
    for track, spans in tracks.items():
        yield f"  {track}: {counted(len(spans), 'span')}", None
        for one in spans:
            before, after = "<" if one.begins_before else "[", ">" if one.ends_after else ")"
            content = json.dumps(one.record, default=str) if one.names is None else ", ".join(one.names)
            yield f"    {before}{one.start}, {one.end}{after} {printable(content, _RECORD)}", one


def _column(dataset: Dataset, name: str, start: int, stop: int) -> dict[str, Any]:
    column, (items, known) = dataset.columns[name], dataset.column_values(name, start, stop)
    if column.dtype == BF16:
        items = (items.astype("<u4") << 16).view("<f4")
    values = [item if there else None for item, there in zip(items.tolist(), known.tolist(), strict=True)]
    return {"item": column.item, "values": values}


def _first(value: Any) -> str:
    if value is None:
        return "no value"
    flat = np.array(value).reshape(-1)
    form = "g" if flat.dtype.kind == "f" else "d"
    return " ".join(format(one, form) for one in flat[:_ITEMS]) + " ..." * (len(flat) > _ITEMS)
