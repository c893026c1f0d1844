"""Which windows hold tokens with a concept, or with a boolean of concepts: by the index, or by reading the track."""

import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from conceptloader.format.index.read import Coverage, open_index
from conceptloader.format.read.bulk import concepts_of
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.trace.run import Member
from conceptloader.trace.where import Intervals, Where

logger = logging.getLogger(__name__)

_CHUNK_TOKENS = 1 << 20


class Holding(NamedTuple):
    """Windows (or documents) that hold tokens with a concept, in order: how many of the inputs, how many labels.

    next: all windows before it have been looked at.
    """

    windows: Ints
    inputs: Ints
    labels: Ints
    next: int


class ConceptSource(Protocol):
    """Where the spans of concepts are known from. chunk: tokens that are best asked for at once."""

    chunk: int

    def spans(self, concept: int, first: int, last: int) -> Intervals:
        """Those that carry a concept and touch tokens [first, last) of the dataset."""


class Scanned:
    """Spans by reading the track, in large pieces."""

    chunk = _CHUNK_TOKENS

    def __init__(self, dataset: Dataset, track: str) -> None:
        self._dataset, self._track = dataset, track
        self._held = lru_cache(maxsize=1)(self._read)  # other concepts of the same tokens are asked for next

    def spans(self, concept: int, first: int, last: int) -> Intervals:
        """See ConceptSource."""
        start, end, span, ids = self._held(first, last)
        having = np.unique(span[ids == concept])
        return start[having], end[having]

    def _read(self, first: int, last: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Start and end of all spans; span and id of all their concepts."""
        parts, done = [[np.zeros(0, np.int64)] * 4], 0
        for shard, a, b, base in self._dataset.parts(first, last):
            start, end, _, _, record = self._dataset.reader.runs(shard, self._track, a, b)
            if len(record):
                num_ids = self._dataset.tracks[self._track].num_ids
                records = record.astype(np.int64)
                offsets, ids = concepts_of(self._dataset.reader, shard, self._track, records, num_ids)
                span = np.repeat(np.arange(len(record)), np.diff(offsets)) + done
                parts.append([start + base, end + base, span, ids])
                done += len(record)
        start, end, span, ids = (np.concatenate(column) for column in zip(*parts, strict=True))
        return start, end, span, ids


def concept_source(dataset: Dataset, track: str) -> ConceptSource:
    """The index of a track, or else the track itself, and a line in the log that says how to make an index.

    Raises: FormatError for an index that is damaged, or of a dataset that was rebuilt since.
    """
    index = open_index(dataset, track)
    if index is not None:
        return index
    if dataset.num_tokens > _CHUNK_TOKENS:
        logger.warning(
            "%s: no index of track %s: it is read from front to back; `conceptloader index %s --track %s` makes one",
            dataset.path, track, dataset.path, track,
        )  # fmt: skip
    return Scanned(dataset, track)


def concept_windows(
    member: Member, track: str, where: Where, begin: int = 0, tokens: int | None = None
) -> Iterator[Holding]:
    """The windows of which `where` holds for some token, some at a time, in order; its concepts are ids.

    track: of codec "concepts". begin: the first window that is looked at. tokens: as many are looked at first, then
    twice as many each time, up to what is best asked for at once; None: that from the start on. The last token of a
    window is a label only, the first one an input only.
    """
    source, size = concept_source(member.dataset, track), member.seq_len
    tokens = min(tokens or source.chunk, source.chunk)
    while begin < member.view.count:
        end = min(begin + max(1, tokens // size), member.view.count)
        windows = (_Documents if member.by_document else _Windows)(member, begin, end)
        first, last = member.token_range(begin)[0], member.token_range(end - 1)[1]

        def spans(concept: str | int, first: int = first, last: int = last) -> Intervals:
            return source.spans(int(concept), first, last)

        found = where.intervals(spans, first, last)
        numbers, start, stop = windows(found)
        before = Coverage(*found)
        inputs = before(np.minimum(stop, start + size)) - before(start)
        labels = before(stop) - before(np.minimum(start + 1, stop))
        some = (inputs + labels) > 0
        yield Holding(numbers[some], inputs[some], labels[some], end)
        begin, tokens = end, min(2 * tokens, source.chunk)


class _Windows:
    """Windows [low, high) of a member."""

    def __init__(self, member: Member, low: int, high: int) -> None:
        self._member, self._low, self._high = member, low, high

    def __call__(self, found: Intervals) -> tuple[Ints, Ints, Ints]:
        """Number, first token and end of the windows that touch intervals."""
        size, base = self._member.seq_len, self._member.view.start
        first = np.maximum((found[0] - base - 1) // size, self._low)
        last = np.minimum((found[1] - 1 - base) // size, self._high - 1)
        counts = last - first + 1
        windows = np.unique(np.repeat(first - offsets_of(counts)[:-1], counts) + np.arange(counts.sum()))
        begin = base + windows * size
        return windows, begin, begin + size + 1


class _Documents(_Windows):
    """The same where a sample is a document."""

    def __call__(self, found: Intervals) -> tuple[Ints, Ints, Ints]:
        member = self._member
        base, stop = (
            member.token_range(self._low)[0],
            member.dataset.document_range(member.view.start + self._high - 1)[1],
        )
        documents = member.dataset.documents_in(base, stop)
        ends = np.append(documents.first[1:], stop)
        begin = documents.first
        return documents.ids - member.view.start, begin, np.minimum(ends, begin + member.seq_len + 1)
