"""A window as the page shows it: the text of each token, spans as they nest, documents."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from conceptloader.errors import ConfigError
from conceptloader.format.read.values import Spans
from conceptloader.format.spec.codecs import ConceptsCodec
from conceptloader.ingest.records.tokenizer import TextTokenizer
from conceptloader.viewer.source import Looked, Query, Source

MOST_TOKENS = 16_384  # of a window that are shown
_CONTEXT, _PENDING = 4, 16  # texts before one that it depends on; tokens of which each ends within a character
_RECORD = 300  # characters of a record that is no list of concepts


def window(looked: Looked, query: Query) -> dict[str, Any]:
    """The window `i` of the dataset `d`, or that of the sample `n` of the run."""
    if "n" in query:
        sample = query.number("n", what="sample")
        era = looked.asked_run().at(sample)
        index, _, number = era.blend.order.sample(sample)
        query = Query({"d": era.name(index), "i": str(number)})
    source = looked.source(query)
    number = query.number("i", 0, source.count, "window")
    start, stop = source.token_range(number)
    shown = describe(looked, source, start, min(stop, start + MOST_TOKENS))
    return {**shown, "i": number, "count": source.count, "seq_len": source.seq_len, "tokens_in_all": stop - start,
            "by_document": source.by_document, "excluded": not source.is_read(number)}  # fmt: skip


def document(looked: Looked, query: Query) -> dict[str, Any]:
    """A document by its number `n` or by its `id` in the input, from its token `from` on."""
    source = looked.source(query)
    dataset = source.dataset
    numbers = []
    if "id" in query:
        numbers = dataset.find_document(query.text("id"))
        if not numbers:
            raise ConfigError(
                "document",
                f"no {query.text('id')!r} in {source.name}",
                "an id of the input",
                "look for an id as the input has it",
            )
    elif not dataset.num_documents:
        raise ConfigError(source.name, "no table of documents", "a table of documents", "look at its windows")
    number = query.number("n", numbers[0] if numbers else 0, dataset.num_documents, "document")
    start, stop = dataset.document_range(number)
    first = query.number("from", 0, max(1, stop - start), "token of the document")
    last = min(stop, start + first + max(512, min(source.seq_len, MOST_TOKENS)))
    shown = describe(looked, source, start + first, last)
    return {**shown, "n": number, "count": dataset.num_documents, "id": dataset.document_id(number), "from": first,
            "length": stop - start, "same_id": numbers, "windows": _windows(source, number, start + first)}  # fmt: skip


def _windows(source: Source, number: int, token: int) -> list[int]:
    """The window that has a token of a document; nothing where the run does not read it."""
    reading = source.windows_of(number)
    window = reading.start if source.by_document else max(0, (token - source.view.start) // source.seq_len)
    return [window] if window in reading else []


def describe(looked: Looked, source: Source, start: int, stop: int) -> dict[str, Any]:
    """Tokens [start, stop) of a dataset.

    Positions count from `start`; spans are concepts with the range that each has, the outermost on level 0.
    """
    dataset = source.dataset
    sample = dataset.read(start, stop, source.readable, documents=True)
    ids = sample["tokens"].tolist()
    tokenizer = looked.decoder(source)
    found = sample["documents"]
    documents = [
        {"n": n, "id": dataset.document_id(n) if n >= 0 else None, "start": max(0, at - start), "before": at < start}
        for n, at in zip(found.ids.tolist(), found.first.tolist(), strict=True)
    ]
    spans: list[dict[str, Any]] = []
    for track in source.readable:
        names = looked.vocabulary(source, track) if track in source.concept_tracks else None
        spans += [
            {**span, "n": str(span["c"] if names is None else names[span["c"]])}
            for span in _spans(track, sample[track])
        ]
    return {"d": source.name, "start": start, "stop": stop, "ids": ids, "documents": documents, "spans": nested(spans),
            "pieces": None if tokenizer is None else pieces(tokenizer, ids), "tracks": source.readable}  # fmt: skip


def pieces(tokenizer: TextTokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token after the ones before it; one that ends within a character has none, the next has all."""
    found: list[str] = []
    starts = [0]  # of the texts so far; the last is the first token that has none yet
    for k in range(len(ids)):
        first, context = starts[-1], starts[-_CONTEXT:][0]
        before, text = tokenizer.decode(ids[context:first]), tokenizer.decode(ids[context : k + 1])
        if text.endswith("\ufffd") and k - first + 1 < _PENDING and k + 1 < len(ids):
            found.append("")
            continue
        found.append(text[len(before) :] if text.startswith(before) else tokenizer.decode(ids[first : k + 1]))
        starts.append(k + 1)
    return found


def _spans(track: str, spans: Spans) -> Iterator[dict[str, Any]]:
    """{"t": track, "c": concept or text of a record, "s", "e": range, "b", "a": whether it continues before, after}.

    Spans that overlapped when they were ingested are runs that share concepts; here each concept has its whole range.
    """
    begun: dict[Any, dict[str, Any]] = {}
    previous: list[Any] = []
    for k, record in enumerate(spans.decode()):
        start, end = int(spans.start[k]), int(spans.end[k])
        concepts = record.tolist() if isinstance(spans.codec, ConceptsCodec) else [_short(record)]
        for concept in dict.fromkeys(concepts):
            open_span = begun.get(concept)
            # Neighbours with the same concepts are two spans: a piece of one differs from the next in something.
            if open_span is not None and open_span["e"] == start and concepts != previous:
                open_span.update(e=end, a=bool(spans.ends_after[k]))
                continue
            if open_span is not None:
                yield open_span
            begun[concept] = {"t": track, "c": concept, "s": start, "e": end,
                              "b": bool(spans.begins_before[k]), "a": bool(spans.ends_after[k])}  # fmt: skip
        previous = concepts
    yield from begun.values()


def _short(record: Any) -> str:
    """A record that is no list of concepts, as text."""
    text = str(record.tolist() if isinstance(record, np.ndarray) else record)
    return text if len(text) <= _RECORD else f"{text[:_RECORD]} ..."


def nested(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the order of their starts, the longer first, each with the lowest "level" that is free at its tokens."""
    spans = sorted(spans, key=lambda span: (span["s"], -span["e"], span["t"], str(span["c"])))
    ends: list[int] = []
    for span in spans:
        level = next((k for k, end in enumerate(ends) if end <= span["s"]), len(ends))
        ends[level : level + 1] = [span["e"]]
        span["level"] = level
    return spans
