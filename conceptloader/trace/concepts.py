"""Which windows hold tokens with a concept, or with a boolean of concepts: by the index, or by reading the track."""

import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.index import Coverage, open_index
from conceptloader.format.read.bulk import concepts_of, scores_of
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints
from conceptloader.trace.ranges import ranges_of, runs_of_samples, samples_touching
from conceptloader.trace.run import Member
from conceptloader.trace.where import OPERATORS, Intervals, Where

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
    """Spans by reading the track, in large pieces. scored: with the scores of their concepts, if it has any."""

    chunk = _CHUNK_TOKENS

    def __init__(self, dataset: Dataset, track: str, scored: bool = False) -> None:
        self._dataset, self._track, self._scored = dataset, track, scored
        self._held = lru_cache(maxsize=1)(self._read)  # other concepts of the same tokens are asked for next

    def spans(self, concept: int, first: int, last: int, compare: str = "", score: float = 0) -> Intervals:
        """See ConceptSource. compare: one of OPERATORS, which holds for the concept's score and `score`; "": any."""
        start, end, span, ids, scores = self._held(first, last)
        of_it = ids == concept
        having = span[of_it & OPERATORS[compare](scores, score)] if compare else span[of_it]
        having = having[np.diff(having, prepend=-1) > 0]  # each once, as its record may name the concept twice
        return start[having], end[having]

    def _read(self, first: int, last: int) -> tuple[Ints, Ints, Ints, Ints, NDArray[np.float64]]:
        """Start and end of all spans; span, id and score of all their concepts."""
        parts: list[list[Any]] = [[np.zeros(0, np.int64)] * 4 + [np.zeros(0)]]
        done = 0
        for shard, start, end, records in self._dataset.span_places(self._track, first, last):
            if len(records):
                num_ids = self._dataset.tracks[self._track].num_ids
                offsets, ids = concepts_of(self._dataset.reader, shard, self._track, records, num_ids)
                span = np.repeat(np.arange(len(records)), np.diff(offsets)) + done
                asked = self._dataset.reader, shard, self._track, records
                scores = scores_of(*asked) if self._scored else np.zeros(len(ids))
                parts.append([start, end, span, ids, scores])
                done += len(records)
        start, end, span, ids, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
        return start, end, span, ids, scores


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


class Sources:
    """Where the spans of all concepts in an expression are known from, which are ids. chunk: as of ConceptSource."""

    def __init__(self, dataset: Dataset, where: Where) -> None:
        tests = [*where.tests("concept")]
        self._plain = {one.name: concept_source(dataset, one.name) for one in tests if not one.compare}
        self._scored = {one.name: Scanned(dataset, one.name, scored=True) for one in tests if one.compare}
        self.chunk = min(source.chunk for source in (*self._plain.values(), *self._scored.values()))

    def holding(self, where: Where, first: int, last: int) -> Intervals:
        """The tokens of [first, last) of which `where` holds."""

        def of(test: Where) -> Intervals:
            if not test.compare:
                return self._plain[test.name].spans(int(test.concept), first, last)
            score = float(test.values[0])
            return self._scored[test.name].spans(int(test.concept), first, last, test.compare, score)

        return where.intervals(of, first, last)


def concept_windows(member: Member, where: Where, begin: int = 0, tokens: int | None = None) -> Iterator[Holding]:
    """The samples of which `where` holds for some token, some at a time, in order; its tests are of concepts by id.

    begin: the first sample that is looked at. tokens: as many are looked at first, then
    twice as many each time, up to what is best asked for at once; None: that from the start on. The last token of a
    window is a label only, the first one an input only.
    """
    sources = Sources(member.dataset, where)
    for low, high, first, last in runs_of_samples(member, sources.chunk, begin, tokens):
        found = sources.holding(where, first, last)
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
