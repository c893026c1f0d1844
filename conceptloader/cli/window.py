"""A range of tokens as text: its documents, text, spans with concepts, and columns."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from conceptloader.base.terminal import printable
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columnfile import BF16
from conceptloader.ingest.records.tokenizer import TextTokenizer

_WIDTH = 100
_ITEMS = 8  # elements of a column's item


def describe(
    dataset: Dataset, start: int, stop: int, tokenizer: TextTokenizer | None, columns: Sequence[str]
) -> dict[str, Any]:
    """Describe tokens [start, stop) as JSON values. Positions of spans are relative to `start`."""
    sample = dataset.read(start, stop, dataset.chosen_tracks(None), documents=True)
    shown = {name: _column(dataset, name, start, stop) for name in columns}
    tokens = sample["tokens"].tolist()
    firsts = sample["documents"].first.tolist()
    documents = [
        {
            "document": number if number >= 0 else None,
            "id": dataset.document_id(number) if number >= 0 else None,
            "start": max(0, first - start),
            "end": min(end, stop) - start,
            "begins_before": first < start,
        }
        for first, number, end in zip(firsts, sample["documents"].ids.tolist(), [*firsts[1:], stop], strict=True)
    ]
    return {
        "tokens": [start, stop],
        "token_ids": tokens,
        "text": tokenizer.decode(tokens) if tokenizer else None,
        "documents": documents,
        "fields": {name: sample[name].tolist() for name in dataset.field_names},
        "tracks": {
            track: list(_spans(dataset, track, sample[track], tokens, tokenizer)) for track in sorted(dataset.tracks)
        },
        **({"columns": shown} if shown else {}),
    }


def _column(dataset: Dataset, name: str, start: int, stop: int) -> dict[str, Any]:
    column, (items, known) = dataset.columns[name], dataset.column_values(name, start, stop)
    if column.dtype == BF16:
        items = (items.astype("<u4") << 16).view("<f4")
    values = [item if there else None for item, there in zip(items.tolist(), known.tolist(), strict=True)]
    return {"item": column.item, "values": values}


def _spans(
    dataset: Dataset, track: str, spans: Any, tokens: list[int], tokenizer: TextTokenizer | None
) -> Iterator[dict[str, Any]]:
    concepts = dataset.tracks[track].codec == "concepts"
    names = dataset.vocabulary(track) if concepts else None
    for i, record in enumerate(spans.decode()):
        span: dict[str, Any] = {
            "start": int(spans.start[i]),
            "end": int(spans.end[i]),
            "begins_before": bool(spans.begins_before[i]),
            "ends_after": bool(spans.ends_after[i]),
        }
        if concepts:
            span["concepts"] = [names[c] if names else int(c) for c in record.tolist()]
        else:
            span["record"] = record
        if tokenizer:
            span["text"] = tokenizer.decode(tokens[span["start"] : span["end"]])
        yield span


def lines(window: dict[str, Any]) -> Iterator[str]:
    """Yield the description as lines of text."""
    start, stop = window["tokens"]
    yield f"tokens {start:,} to {stop:,} ({stop - start:,})"
    for part in window["documents"]:
        name = "without a document table" if part["document"] is None else f"document {part['document']}"
        shown = f" {printable(part['id'], 60)!r}" if part["id"] else ""
        more = ", begun before" if part["begins_before"] else ""
        yield f"  [{part['start']}, {part['end']}) {name}{shown}{more}"
    if window["text"] is None:
        shown = " ".join(map(str, window["token_ids"][:24]))
        yield f"  token ids {shown}{' ...' if len(window['token_ids']) > 24 else ''}"
    else:
        yield "text"
        for line in window["text"].splitlines():
            yield f"  {printable(line)}"
    for track, spans in window["tracks"].items():
        yield f"track {track}: {len(spans)} spans"
        for span in spans:
            left = "<" if span["begins_before"] else "["
            right = ">" if span["ends_after"] else ")"
            content = ", ".join(map(str, span["concepts"])) if "concepts" in span else str(span["record"])
            excerpt = f"  | {printable(span['text'], _WIDTH // 2)}" if "text" in span else ""
            yield f"  {left}{span['start']}, {span['end']}{right} {printable(content, _WIDTH)}{excerpt}"
    for name, column in window.get("columns", {}).items():
        yield f"column {name}: {column['item']}"
        for place, (token, value) in enumerate(zip(window["token_ids"], column["values"], strict=True)):
            yield f"  {place} of token {token}: {_first(value)}"


def _first(value: Any) -> str:
    if value is None:
        return "no value"
    flat = np.array(value).reshape(-1)
    form = "g" if flat.dtype.kind == "f" else "d"
    return " ".join(format(one, form) for one in flat[:_ITEMS]) + " ..." * (len(flat) > _ITEMS)
