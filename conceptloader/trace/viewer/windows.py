"""A window or pack as it is shown: the text of each token, documents, spans as they nest."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.values import Spans
from conceptloader.format.spec.codecs import ConceptsCodec, is_known
from conceptloader.ingest.records.tokenizer import TextTokenizer, find_tokenizer

_CONTEXT, _PENDING = 4, 16  # texts before one that it depends on; tokens of which each ends within a character
_RECORD = 300  # characters of a record that is no list of concepts


class Span(NamedTuple):
    """Tokens [start, end) of a window with one concept.

    Attributes:
        concept: Its id; of a record that is no list of concepts, its text.
        level: The line below the text that it is drawn on, from 0; the outermost first.
    """

    start: int
    end: int
    track: str
    concept: int | str
    name: str
    score: float | None = None
    level: int = 0

    def __str__(self) -> str:
        score = "" if self.score is None else f" {self.score:.3g}"
        return f"{self.name}{score} [{self.start}, {self.end})"


class Document(NamedTuple):
    """Tokens [start, end) of a window that are of one document. begins: its first token is there."""

    start: int
    end: int
    name: str
    begins: bool


@dataclass
class Window:
    """texts: of each token, "" at a position without one, as at the end of a pack."""

    texts: list[str]
    documents: list[Document] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


class Reader:
    """Reads windows of a dataset. names: of the concepts of each track, if there are any.

    Args:
        dataset: The dataset.
        tokenizer: As `--tokenizer`: by default the copy that the dataset has, if any.

    Raises:
        ConfigError: If the tokenizer is not that of the dataset.
    """

    def __init__(self, dataset: Dataset, tokenizer: str | None = None) -> None:
        self.dataset = dataset
        self.tokenizer = find_tokenizer(dataset, tokenizer)
        # Those that execute nothing when they are decoded.
        tracks = [name for name, one in dataset.tracks.items() if is_known(one.codec)]
        self.names = {track: dataset.vocabulary(track) for track in sorted(tracks)}

    def read(self, ranges: Iterable[tuple[int, int, int]], tracks: Iterable[str] | None = None) -> Window:
        """A window of the tokens [start, stop) of the dataset, each of these from its place in the window on."""
        shown = [track for track in self.names if tracks is None or track in tracks]
        window, spans = Window([]), list[Span]()
        for start, stop, place in ranges:
            sample = self.dataset.read(start, stop, shown, documents=True)
            texts = self.texts(sample["tokens"].tolist())
            window.texts += [""] * (place + len(texts) - len(window.texts))
            window.texts[place : place + len(texts)] = texts
            documents = sample["documents"]
            firsts, shift = documents.first.tolist(), place - start
            for number, first, end in zip(documents.ids.tolist(), firsts, [*firsts[1:], stop], strict=True):
                name = f"document {number}" if number >= 0 else "documents are unknown"
                name = (self.dataset.document_id(number) if number >= 0 else None) or name
                window.documents.append(Document(max(first, start) + shift, end + shift, name, first >= start))
            for track in shown:
                pieces = len(self.dataset.levels[track]) == 1
                spans += _spans(track, sample[track], self.names[track], place, pieces)
        window.spans = nested(spans)
        return window

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; the ids without a tokenizer."""
        return [f"{token} " for token in ids] if self.tokenizer is None else pieces(self.tokenizer, ids)


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


def _spans(track: str, spans: Spans, names: Sequence[str] | None, place: int, pieces: bool) -> Iterator[Span]:
    """One for each concept of a span.

    pieces: spans that overlapped when they were ingested may be runs that share concepts, and not on levels; here each
    concept has its whole range.
    """
    begun: dict[Any, Span] = {}
    previous: list[Any] = []
    offsets = spans.offsets.tolist()
    for k, record in enumerate(spans.decode()):
        start, end = place + int(spans.start[k]), place + int(spans.end[k])
        concepts = [_short(record)] if not isinstance(spans.codec, ConceptsCodec) else record.tolist()
        scores = [None] * len(concepts)
        if isinstance(spans.codec, ConceptsCodec) and spans.codec.scores is not None:
            scores = spans.scores[offsets[k] : offsets[k + 1]].tolist()
        for concept, score in dict(zip(concepts, scores, strict=True)).items():
            before = begun.get(concept)
            # Neighbours with the same concepts are two spans: a piece of one differs from the next in something.
            neighbours = before is not None and (before.end, before.score) == (start, score)
            if pieces and before is not None and neighbours and concepts != previous:
                begun[concept] = before._replace(end=end)
                continue
            if before is not None:
                yield before
            name = str(concept) if names is None else names[concept]
            begun[concept] = Span(start, end, track, concept, name, score)
        previous = concepts
    yield from begun.values()


def _short(record: Any) -> str:
    """A record that is no list of concepts, as text."""
    text = str(record.tolist() if isinstance(record, np.ndarray) else record)
    return text if len(text) <= _RECORD else f"{text[:_RECORD]} ..."


def nested(spans: Iterable[Span]) -> list[Span]:
    """In the order of their starts, the longer first, each with the lowest level that is free at its tokens."""
    ends: list[int] = []
    found = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end, span.track, str(span.concept))):
        level = next((k for k, end in enumerate(ends) if end <= span.start), len(ends))
        ends[level : level + 1] = [span.end]
        found.append(span._replace(level=level))
    return found
