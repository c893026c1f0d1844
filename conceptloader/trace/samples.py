"""What a sample is made of: its documents and the records of its spans."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from conceptloader.order.partition import Place
from conceptloader.trace.run import Interval, Member, Run


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

    document: its number in the dataset, -1 without a document table; id: the one it had in the input. inputs, labels:
    its positions [start, end) in input_ids and in labels, None where it has none. source_document: its number in the
    source, if the dataset is a view.
    """

    document: int
    id: str | None
    inputs: Interval | None
    labels: Interval | None
    source_document: int | None = None


@dataclass(frozen=True, kw_only=True)
class SpanPart:
    """A span, clipped to the inputs, as a batch has it.

    record: its content: concept ids, or what the track's codec makes of it. names: of the concepts, if there is a
    vocabulary.
    """

    start: int
    end: int
    begins_before: bool
    ends_after: bool
    record: Any
    names: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class SampleTrace(Seen):
    """tokens: [start, stop) of the dataset that the sample reads; None if it touches what is quarantined or excluded:
    nothing is read then.
    """

    tokens: Interval | None = None
    documents: list[DocumentPart] = field(default_factory=list)
    spans: dict[str, list[SpanPart]] = field(default_factory=dict)


def trace_sample(run: Run, sample: int) -> SampleTrace:
    """Everything about one sample. Reads its documents and spans, not its tokens."""
    index, epoch, window = run.blend.order.sample(sample)
    member = run.member(index)
    found = SampleTrace(sample=sample, places=run.places(sample), dataset=run.name(index), epoch=epoch, window=window)
    if not member.is_read(window, sample):
        return found
    return replace(
        found,
        tokens=member.token_range(window),
        documents=list(_documents(member, window)),
        spans={track: list(_spans(member, window, track)) for track in member.tracks},
    )


def trace_step(run: Run, step: int) -> list[SampleTrace]:
    """All samples of a step, in order. Raises ConfigError if steps are not known."""
    return [trace_sample(run, sample) for sample in range(*run.steps.range_of(step))]


def _documents(member: Member, window: int) -> Iterator[DocumentPart]:
    start, stop = member.token_range(window)
    dataset = member.dataset
    found = dataset.documents_in(start, stop)
    firsts = found.first.tolist()
    for number, first, last in zip(found.ids.tolist(), firsts, [*firsts[1:], stop], strict=True):
        inputs, labels = member.positions(window, first, last)
        known = dataset.document_id(number) if number >= 0 else None
        source = None if dataset.runs is None else int(dataset.sources(np.array([number]))[0])
        yield DocumentPart(document=number, id=known, inputs=inputs, labels=labels, source_document=source)


def _spans(member: Member, window: int, track: str) -> Iterator[SpanPart]:
    start, stop = member.token_range(window)
    dataset = member.dataset
    if track not in dataset.tracks or start == stop:
        return
    spans = dataset.spans(track, start, min(stop, start + member.seq_len))
    vocabulary = dataset.vocabulary(track)
    for k, record in enumerate(spans.decode()):
        yield SpanPart(
            start=int(spans.start[k]),
            end=int(spans.end[k]),
            begins_before=bool(spans.begins_before[k]),
            ends_after=bool(spans.ends_after[k]),
            record=record.tolist()
            if isinstance(record, np.ndarray)
            else record.hex()
            if isinstance(record, bytes)
            else record,
            names=None if vocabulary is None else [vocabulary[concept] for concept in record],
        )
