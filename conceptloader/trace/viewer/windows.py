"""A window or pack as it is shown: the text of each token, spans as they nest."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from conceptloader.base.terminal import printable
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.codecs import is_known
from conceptloader.ingest.records.tokenizer import TextTokenizer, find_tokenizer
from conceptloader.trace.ranges import Part
from conceptloader.trace.run import Run
from conceptloader.trace.samples import SpanPart, documents_of, spans_of

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


@dataclass
class Window:
    """A sample of a run, or other tokens.

    Attributes:
        texts, ids: Of each token, "" and -1 at a position without one, as between the parts of a pack.
        begins: Where a document begins.
        spans: One for each concept.
        dataset, sample: The name of its dataset and the trainer's index, of a sample of a run.
    """

    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    dataset: str = ""
    sample: int | None = None

    @property
    def text(self) -> str:
        """Of all tokens."""
        return "".join(self.texts)

    def text_of(self, span: Span) -> str:
        """Of its tokens."""
        return "".join(self.texts[span.start : span.end])

    def __str__(self) -> str:
        spans = (f"  {span.track} {span} {printable(self.text_of(span))!r}" for span in self.spans)
        return "\n".join([f"sample {self.sample} of {self.dataset}: {printable(self.text)}", *spans])


class Reader:
    """Reads windows of a dataset.

    Args:
        dataset: The dataset.
        tokenizer: As `--tokenizer`: by default the copy that the dataset has, if any.

    Raises:
        ConfigError: If the tokenizer is not that of the dataset.
    """

    def __init__(self, dataset: Dataset, tokenizer: str | None = None) -> None:
        self.dataset = dataset
        self.tokenizer = find_tokenizer(dataset, tokenizer)

    def read(self, parts: Iterable[Part], tracks: Iterable[str] | None = None) -> Window:
        """The inputs of parts of a sample, see `Member.parts` and `whole`. tracks: by default all.

        Those whose codec may execute something when they are decoded are not shown.
        """
        known = sorted(name for name, one in self.dataset.tracks.items() if is_known(one.codec))
        window, spans = Window(), list[Span]()
        for part in parts:
            ids = self.dataset.tokens(part.start, part.start + part.inputs).tolist()
            without = part.place - len(window.ids)
            window.ids += [-1] * without + ids
            window.texts += [""] * without + self.texts(ids)
            documents = documents_of(self.dataset, part)
            window.begins += [one.inputs[0] for one in documents if one.inputs is not None and one.begins]
            for track in known if tracks is None else {*known}.intersection(tracks):
                concepts = self.dataset.tracks[track].codec == "concepts"
                pieces = len(self.dataset.levels[track]) == 1
                spans += _spans(track, spans_of(self.dataset, part, track), concepts, pieces)
        window.spans = nested(spans)
        return window

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; the ids without a tokenizer."""
        return [f"{token} " for token in ids] if self.tokenizer is None else pieces(self.tokenizer, ids)


class Samples:
    """Reads samples of a run as windows. tokenizer: as of Reader."""

    def __init__(self, run: Run, tokenizer: str | None = None) -> None:
        self._run, self._tokenizer = run, tokenizer
        self._readers: dict[Dataset, Reader] = {}

    def read(self, sample: int) -> Window:
        """A sample as it was trained last; without tokens where nothing is read. Raises ConfigError as `Run.at`."""
        era = self._run.at(sample)
        index, _, number = era.blend.order.sample(sample)
        member = era.member(index)
        reader = self._readers.get(member.dataset) or Reader(member.dataset, self._tokenizer)
        self._readers[member.dataset] = reader
        parts = [part for part in member.parts(number, sample) if part.inputs]
        return replace(reader.read(parts, member.tracks), dataset=era.name(index), sample=sample)


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


def _spans(track: str, spans: Iterable[SpanPart], concepts: bool, pieces: bool) -> Iterator[Span]:
    """One for each concept of a span.

    pieces: spans that overlapped when they were ingested may be runs that share concepts, and not on levels; here each
    concept has its whole range.
    """
    begun: dict[Any, Span] = {}
    previous: list[Any] = []
    for one in spans:
        ids = one.record if concepts else [_short(one.record)]
        scores: Sequence[float | None] = one.scores or [None] * len(ids)
        named = zip(one.names or map(str, ids), scores, strict=True)
        for concept, (name, score) in dict(zip(ids, named, strict=True)).items():
            before = begun.get(concept)
            # Neighbours with the same concepts are two spans: a piece of one differs from the next in something.
            neighbours = before is not None and (before.end, before.score) == (one.start, score)
            if pieces and before is not None and neighbours and ids != previous:
                begun[concept] = before._replace(end=one.end)
                continue
            if before is not None:
                yield before
            begun[concept] = Span(one.start, one.end, track, concept, name, score)
        previous = ids
    yield from begun.values()


def _short(record: Any) -> str:
    """A record that is no list of concepts, as text."""
    return str(record) if len(str(record)) <= _RECORD else f"{str(record)[:_RECORD]} ..."


def nested(spans: Iterable[Span]) -> list[Span]:
    """In the order of their starts, the longer first, each with the lowest level that is free at its tokens."""
    ends: list[int] = []
    found = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end, span.track, str(span.concept))):
        level = next((k for k, end in enumerate(ends) if end <= span.start), len(ends))
        ends[level : level + 1] = [span.end]
        found.append(span._replace(level=level))
    return found
