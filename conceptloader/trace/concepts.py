"""Which windows hold tokens with a concept, or with a boolean of concepts: by the index, or by reading the track."""

import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from conceptloader.format.index import Coverage, open_index
from conceptloader.format.read.bulk import concepts_of
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints
from conceptloader.trace.ranges import ranges_of, runs_of_samples, samples_touching
from conceptloader.trace.run import Member
from conceptloader.trace.where import Intervals, Where

logger = logging.getLogger(__name__)

_CHUNK_TOKENS = 1 << 20


class Holding(NamedTuple):
    """Windows (documents, packs) that hold tokens with a concept, in order: how many of the inputs, how many labels.

    A window of which some is excluded has a row for each sample `since` which that is so, NEVER for the rest. next: all
    windows before it have been looked at.
    """

    windows: Ints
    inputs: Ints
    labels: Ints
    since: Ints
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
        having = span[ids == concept]
        having = having[np.diff(having, prepend=-1) > 0]  # each once, as its record may name the concept twice
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


def holding(source: ConceptSource, where: Where, first: int, last: int) -> Intervals:
    """The tokens of [first, last) of which `where` holds; its concepts are ids."""
    return where.intervals(lambda concept: source.spans(int(concept), first, last), first, last)


def concept_windows(
    member: Member, track: str, where: Where, begin: int = 0, tokens: int | None = None
) -> Iterator[Holding]:
    """The samples of which `where` holds for some token, some at a time, in order; its concepts are ids.

    track: of codec "concepts". begin: the first sample that is looked at. tokens: as many are looked at first, then
    twice as many each time, up to what is best asked for at once; None: that from the start on. The last token of a
    window is a label only, the first one an input only.
    """
    source = concept_source(member.dataset, track)
    for low, high, first, last in runs_of_samples(member, source.chunk, begin, tokens):
        found = holding(source, where, first, last)
        numbers = samples_touching(member, *found, low, high)
        parts, before = ranges_of(member, numbers), Coverage(*found)
        inputs = before(parts.start + parts.inputs) - before(parts.start)
        labels = before(parts.stop) - before(np.minimum(parts.start + 1, parts.stop))
        some = np.flatnonzero((parts.since > 0) & (inputs + labels > 0) & (numbers[parts.row] >= begin))
        some = some[np.lexsort((parts.since[some], parts.row[some]))]
        row, since = parts.row[some], parts.since[some]
        cuts = np.flatnonzero((np.diff(row, prepend=-1) != 0) | (np.diff(since, prepend=-1) != 0))
        inputs, labels = (np.add.reduceat(one[some], cuts) if len(cuts) else one[cuts] for one in (inputs, labels))
        yield Holding(numbers[row[cuts]], inputs, labels, since[cuts], high)
