"""The contents of a sample: its documents and the records of its spans."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.codecs import ConceptsCodec
from conceptloader.order.partition import Place
from conceptloader.trace.ranges import Interval, Part
from conceptloader.trace.run import Run


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One sample. sample: the trainer's index. places: steps, micro batches, ranks and slots, if they are known."""

    sample: int
    places: list[Place]
    dataset: str
    epoch: int
    window: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**asdict(self), "places": [place._asdict() for place in self.places]}


@dataclass(frozen=True, kw_only=True)
class DocumentPart:
    """The part of a document that a sample holds.

    Attributes:
        document: Its number in the dataset, -1 without a document table.
        id: The one it had in the input.
        tokens: Of the dataset, [start, stop).
        inputs: Positions of these tokens in input_ids, [start, stop); None if none of them is an input.
        labels: Positions of these tokens in labels, [start, stop); None if none of them is a label.
        begins: Whether its first token is among them.
        source_document: Its number in the source, if the dataset is a subset.
    """

    document: int
    id: str | None
    tokens: Interval
    inputs: Interval | None
    labels: Interval | None
    begins: bool
    source_document: int | None = None


@dataclass(frozen=True, kw_only=True)
class SpanPart:
    """A span, clipped to the inputs, as a batch has it.

    Attributes:
        record: Its content: concept ids, or what the track's codec makes of it.
        names, scores: Of the concepts, if the track has them.
    """

    start: int
    end: int
    begins_before: bool
    ends_after: bool
    record: Any
    names: list[str] | None = None
    scores: list[float] | None = None


@dataclass(frozen=True, kw_only=True)
class SampleTrace(Seen):
    """What a sample holds.

    Attributes:
        kind: window, document or pack.
        tokens: [start, stop) of the dataset that the sample reads, of a pack from the first one to the last; None if
            nothing is read: it touches what is excluded, or is an empty pack.
        documents, spans: Without anything if nothing is read.
    """

    kind: str
    tokens: Interval | None
    documents: list[DocumentPart]
    spans: dict[str, list[SpanPart]]


def trace_sample(run: Run, sample: int) -> SampleTrace:
    """Everything about one sample, as it was trained last.

    Raises:
        ConfigError: If nothing says what the sample was.
    """
    run = run.at(sample)
    index, epoch, window = run.blend.order.sample(sample)
    member = run.member(index)
    parts = member.parts(window, sample)
    tracks = member.tracks if parts else ()
    return SampleTrace(
        sample=sample,
        places=run.places(sample),
        dataset=run.name(index),
        epoch=epoch,
        window=window,
        kind=member.kind,
        tokens=(min(part.start for part in parts), max(part.stop for part in parts)) if parts else None,
        documents=[one for part in parts for one in documents_of(member.dataset, part)],
        spans={track: [one for part in parts for one in spans_of(member.dataset, part, track)] for track in tracks},
    )


def trace_step(run: Run, step: int) -> list[SampleTrace]:
    """All samples of a step, in order; without those that pad a last batch.

    Raises:
        ConfigError: If steps are not known, and for one after the end.
    """
    era = run.at_step(step)
    return [trace_sample(era, sample) for sample in range(*run.steps.range_of(step))]


def documents_of(dataset: Dataset, part: Part) -> Iterator[DocumentPart]:
    """What documents have of a part of a sample."""
    found = dataset.documents_in(part.start, part.stop)
    firsts = found.first.tolist()
    for number, first, last in zip(found.ids.tolist(), firsts, [*firsts, part.stop][1:], strict=True):
        tokens = max(first, part.start), last
        inputs, labels = part.positions(*tokens)
        known = dataset.document_id(number) if number >= 0 else None
        source = None if dataset.runs is None else int(dataset.sources(np.array([number]))[0])
        where = {"tokens": tokens, "inputs": inputs, "labels": labels, "begins": first >= part.start}
        yield DocumentPart(**where, document=number, id=known, source_document=source)


def spans_of(dataset: Dataset, part: Part, track: str) -> Iterator[SpanPart]:
    """The spans of a track, if the dataset has it, in the inputs of a part of a sample."""
    if track not in dataset.tracks or not part.inputs:
        return
    spans = dataset.spans(track, part.start, part.start + part.inputs)
    vocabulary, offsets = dataset.vocabulary(track), spans.offsets.tolist()
    scored = isinstance(spans.codec, ConceptsCodec) and spans.codec.scores is not None
    for k, record in enumerate(spans.decode()):
        if isinstance(record, (np.ndarray, bytes)):
            record = record.hex() if isinstance(record, bytes) else record.tolist()
        yield SpanPart(
            start=part.place + int(spans.start[k]),
            end=part.place + int(spans.end[k]),
            begins_before=bool(spans.begins_before[k]),
            ends_after=bool(spans.ends_after[k]),
            record=record,
            names=None if vocabulary is None else [vocabulary[concept] for concept in record],
            scores=spans.scores[offsets[k] : offsets[k + 1]].tolist() if scored else None,
        )
