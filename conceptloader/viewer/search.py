"""Text of a corpus: documents with a word in them; spans of a concept in their context."""

import random
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from conceptloader.errors import ConfigError
from conceptloader.format.spec.codecs import ConceptsCodec
from conceptloader.ingest.records.tokenizer import TextTokenizer
from conceptloader.trace.concepts import concept_windows
from conceptloader.trace.where import Where
from conceptloader.viewer.corpus import asked_concept
from conceptloader.viewer.source import Looked, Query, Source
from conceptloader.viewer.windows import pieces

_HITS, _AROUND = 50, 60  # documents in an answer; characters on each side of what was found
_SECONDS = 0.25  # of reading for an answer
_SHOWN, _SPANS, _STARTS = 8, 400, 8  # spans that are shown, read at most, and places in the corpus where that begins
_CONTEXT, _LONGEST, _CHUNK = 24, 48, 1 << 14  # tokens around a span, of a span, and of a first look for the concept


def search(looked: Looked, query: Query) -> dict[str, Any]:
    """Documents whose text has `q` in it, in any case, from document `from` on: as many as one answer holds.

    `next` is where the following answer continues. The text is that of the tokens.
    """
    source, wanted = looked.source(query), query.text("q")
    dataset, tokenizer = source.dataset, _decoder(looked, source)
    if not dataset.num_documents:
        raise ConfigError(source.name, "no table of documents", "a table of documents", "look at its windows")
    number = first = query.number("from", 0, dataset.num_documents, "document")
    pattern, until = re.compile(re.escape(wanted), re.IGNORECASE), time.monotonic() + _SECONDS
    hits: list[dict[str, Any]] = []
    while number == first or (number < dataset.num_documents and len(hits) < _HITS and time.monotonic() < until):
        text = tokenizer.decode(dataset.tokens(*dataset.document_range(number)).tolist())
        if found := pattern.search(text):
            a, b = found.span()
            hits.append({
                "n": number, "id": dataset.document_id(number), "before": text[max(0, a - _AROUND) : a],
                "match": text[a:b], "after": text[b : b + _AROUND],
            })  # fmt: skip
        number += 1
    return {"d": source.name, "q": wanted, "hits": hits, "from": first, "count": dataset.num_documents,
            "next": number if number < dataset.num_documents else None}  # fmt: skip


def contexts(looked: Looked, query: Query) -> dict[str, Any]:
    """Spans of a concept `c` in their context: random ones, and of a track with scores the strongest.

    They are of the spans that a bounded reading from several places finds; of all if that reading comes to the end.
    """
    source, track, concept = asked_concept(looked, query)
    tokenizer = _decoder(looked, source)
    until, found = time.monotonic() + _SECONDS, dict[tuple[int, int], float | None]()
    for span, score in _spans(source, track, concept, until):
        found[span] = score
        if len(found) >= _SPANS:
            break
    chosen = random.Random(concept).sample(sorted(found), min(len(found), _SHOWN))
    scores = {span: score for span, score in found.items() if score is not None}
    strongest = sorted(scores, key=lambda span: (-scores[span], span))[:_SHOWN]
    shown = {"random": sorted(chosen), "strongest": strongest}
    return {"found": len(found), **{
        kind: [_in_context(source, tokenizer, span, found[span]) for span in spans] for kind, spans in shown.items()
    }}  # fmt: skip


def _decoder(looked: Looked, source: Source) -> TextTokenizer:
    tokenizer = looked.decoder(source)
    if tokenizer is None:
        raise ConfigError(
            source.name, "no copy of its tokenizer", "a tokenizer, for text", "start the viewer with --tokenizer"
        )
    return tokenizer


def _spans(source: Source, track: str, concept: int, until: float) -> Iterator[tuple[tuple[int, int], float | None]]:
    """((start, stop) in the tokens of the dataset, score) of spans with the concept, from places all over it.

    until: when reading ends, also if nothing was found, as time.monotonic() says it.
    """
    starts = sorted(random.Random(0).sample(range(source.count), min(source.count, _STARTS)))
    each = -(-_SPANS // len(starts))
    for first, last in zip([0, *starts[1:]], [*starts[1:], source.count], strict=True):
        given = 0
        for found in concept_windows(source, Where("concept", name=track, concept=concept), first, _CHUNK):
            for window in np.unique(found.windows).tolist():
                if window < last and given < each:
                    here = [*_of_window(source, track, concept, window)]
                    given += len(here)
                    yield from here
            if time.monotonic() >= until:
                return
            if found.next >= last or given >= each:
                break


def _of_window(source: Source, track: str, concept: int, window: int) -> Iterator[tuple[tuple[int, int], float | None]]:
    start, stop = source.token_range(window)
    spans = source.dataset.spans(track, start, stop)
    scored = isinstance(spans.codec, ConceptsCodec) and spans.codec.scores is not None
    at = 0
    for k, record in enumerate(spans.decode()):
        ids = record.tolist()
        if concept in ids:
            score = float(spans.scores[at + ids.index(concept)]) if scored else None
            yield (start + int(spans.start[k]), start + int(spans.end[k])), score
        at += len(ids)


def _in_context(source: Source, tokenizer: TextTokenizer, span: tuple[int, int], score: float | None) -> dict[str, Any]:
    """The text of a span and of the tokens around it."""
    start, stop = span[0], min(span[1], span[0] + _LONGEST)
    first, last = max(0, start - _CONTEXT), min(source.dataset.num_tokens, stop + _CONTEXT)
    texts = pieces(tokenizer, source.dataset.tokens(first, last).tolist())
    parts = texts[: start - first], texts[start - first : stop - first], texts[stop - first :]
    before, match, after = map("".join, parts)
    window = None if source.by_document else (start - source.view.start) // source.seq_len
    return {"before": before, "match": match + ("..." if span[1] > stop else ""), "after": after, "score": score,
            "i": window if window is not None and 0 <= window < source.count else None}  # fmt: skip
