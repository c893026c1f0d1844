"""Which windows hold tokens with a concept, or with a boolean of concepts: by the index, or by reading the track."""

import logging
from collections.abc import Collection, Iterator, Mapping
from functools import cache, lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.read.bulk import concepts_of, scores_of
from conceptloader.format.read.concepts import Coverage, open_index, united
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints
from conceptloader.trace.ranges import Member, ranges_of, runs_of_samples, samples_touching
from conceptloader.trace.where import OPERATORS, Intervals, Where

logger = logging.getLogger(__name__)
K = TypeVar("K")

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


class _TrackSpans:
    """Spans of the concepts of a track: by its index, or else by reading it; then a warning says once how to build one.

    scored: with the scores of their concepts, which no index has. chunk: tokens that are best asked for at once.

    Raises: FormatError for a corrupt index, or one of a dataset that was rebuilt since.
    """

    def __init__(self, dataset: Dataset, track: str, scored: bool) -> None:
        self._dataset, self._track, self._scored = dataset, track, scored
        self._index = None if scored else open_index(dataset, track)
        self.chunk = _CHUNK_TOKENS if self._index is None else self._index.chunk
        if self._index is None and not scored and dataset.num_tokens > _CHUNK_TOKENS:
            _warn_of_reading(dataset.path, track)
        self._held = lru_cache(maxsize=1)(self._read)  # other concepts of the same tokens are asked for next

    def of(self, test: Where, first: int, last: int) -> Intervals:
        """Those of which a test holds, by the id of its concept, and that touch tokens [first, last) of the dataset."""
        if self._index is not None:
            found: Intervals = self._index.spans(int(test.concept), first, last)
            return found
        start, end, ids, scores = self._held(first, last)
        having = ids == int(test.concept)
        if test.compare:
            having &= OPERATORS[test.compare](scores, test.score)
        return united(np.zeros(having.sum(), np.int64), start[having], end[having])[1:]

    def _read(self, first: int, last: int) -> tuple[Ints, Ints, Ints, NDArray[np.float64]]:
        """Each concept of each span: the span's start and end, the concept's id and score."""
        parts = [(*[np.zeros(0, np.int64)] * 3, np.zeros(0))]
        for level in self._dataset.levels[self._track]:
            for shard, start, end, records in self._dataset.span_places(level, first, last):
                asked = self._dataset.reader, shard, level, records
                offsets, ids = concepts_of(*asked, self._dataset.tracks[self._track].num_ids)
                scores = scores_of(*asked) if self._scored else np.zeros(len(ids))
                counts = np.diff(offsets)
                parts.append((np.repeat(start, counts), np.repeat(end, counts), ids, scores))
        start, end, ids, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
        return start, end, ids, scores


@cache  # once, not with each entry of the configuration that reads it
def _warn_of_reading(path: str, track: str) -> None:
    logger.warning(
        "%s: track %s has no index: all of it is read; `conceptloader index %s --track %s` builds one",
        path, track, path, track,
    )  # fmt: skip


def with_ids(datasets: Mapping[K, Dataset], where: Where) -> dict[K, Where]:
    """Each dataset that has all tracks, with the expression in its ids.

    The ids are those for the concepts, -1 for those that only others know.

    Raises: ConfigError for a track, a concept or scores that none has.
    """
    tests = [*where.tests()]
    having = {key: ds for key, ds in datasets.items() if all(test.name in ds.concept_tracks for test in tests)}
    ids: dict[Where, dict[K, int]] = {}
    for test in tests:
        of = {key: ds for key, ds in datasets.items() if test.name in ds.concept_tracks}
        if not of:
            known = ", ".join(sorted({name for ds in datasets.values() for name in ds.concept_tracks})) or "none"
            raise test.wrong(f"no track {test.name!r} of concepts", f"one of {known}")
        if test.compare and any(ds.files.concepts(test.name).scores is None for ds in having.values()):
            raise test.wrong(f"the track {test.name!r} without scores", "one that has some")
        ids[test] = {key: _id_of(ds, test) for key, ds in of.items()}
        if max(ids[test].values()) < 0:
            raise test.wrong(f"{test.concept!r} of the track {test.name!r}", f"one of {_described(of.values(), test)}")
    return {key: where.renamed({test: of.get(key, -1) for test, of in ids.items()}) for key in having}


def _id_of(dataset: Dataset, test: Where) -> int:
    """The id of a concept, which is a number already or a name; -1 for none."""
    names = dataset.vocabulary(test.name)
    if isinstance(test.concept, int) or (names is None and test.concept.isdecimal()):
        return int(test.concept) if int(test.concept) < dataset.tracks[test.name].num_ids else -1
    return names.index(test.concept) if names is not None and test.concept in names else -1


def _described(datasets: Collection[Dataset], test: Where) -> str:
    """What there is in place of a concept that nobody knows."""
    names = sorted({name for ds in datasets for name in ds.vocabulary(test.name) or ()})
    if isinstance(test.concept, int) or not names:
        return f"its {max(ds.tracks[test.name].num_ids for ds in datasets):,} ids"
    return f"its {len(names):,} names, such as {', '.join(names[:10])}"


class Sources:
    """The spans of all concepts in an expression, which are ids. chunk: tokens that are best asked for at once."""

    def __init__(self, dataset: Dataset, where: Where) -> None:
        kinds = {(test.name, bool(test.compare)) for test in where.tests()}
        self._spans = {kind: _TrackSpans(dataset, *kind) for kind in kinds}
        self.chunk = min(spans.chunk for spans in self._spans.values())

    def holding(self, where: Where, first: int, last: int) -> Intervals:
        """The tokens of [first, last) of which `where` holds."""

        def of(test: Where) -> Intervals:
            return self._spans[test.name, bool(test.compare)].of(test, first, last)

        return where.intervals(of, first, last)


def concept_windows(member: Member, where: Where, tokens: int) -> Iterator[Holding]:
    """The samples of which `where` holds for some token, some at a time, in order; its tests are of concepts by id.

    tokens: as many are looked at first, then twice as many each time, up to what is best asked for at once. The last
    token of a window is a label only, the first one an input only.
    """
    sources = Sources(member.dataset, where)
    for low, high, first, last in runs_of_samples(member, sources.chunk, tokens):
        found = sources.holding(where, first, last)
        numbers = samples_touching(member, *found, low, high)
        parts, before = ranges_of(member, numbers), Coverage(*found)
        inputs = before(parts.start + parts.inputs) - before(parts.start)
        labels = before(parts.stop) - before(np.minimum(parts.start + 1 - parts.goes_on, parts.stop))
        some = np.flatnonzero((parts.since > 0) & (inputs + labels > 0))
        some = some[np.lexsort((parts.since[some], parts.row[some]))]
        row, since = parts.row[some], parts.since[some]
        cuts = np.flatnonzero((np.diff(row, prepend=-1) != 0) | (np.diff(since, prepend=-1) != 0))
        inputs, labels = (np.add.reduceat(one[some], cuts) for one in (inputs, labels))
        yield Holding(numbers[row[cuts]], inputs, labels, since[cuts], high)
