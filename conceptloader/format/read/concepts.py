"""Which spans carry which concepts: by reading a track, or by its index where a command has made one."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conceptloader.base.packages import find_add_on
from conceptloader.format.read.bulk import concepts_of, whole_spans
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints

_CHUNK_TOKENS = 1 << 22


def open_index(dataset: Dataset, track: str) -> Any:
    """The ConceptIndex of a track (index/reader.py), None without one, and where that add-on is missing.

    Raises: FormatError for a corrupt index, or one of a dataset that was rebuilt since; ReadError.
    """
    reader = find_add_on("conceptloader.index.reader")
    return reader and reader.open_index(dataset, track)


class Coverage:
    """How many tokens before a place are in disjoint intervals [start, end), which are in order."""

    def __init__(self, start: Ints, end: Ints) -> None:
        self._start = np.append(np.int64(-1), start)
        self._length = np.append(np.int64(0), end - start)
        self._before = np.cumsum(self._length) - self._length

    def __call__(self, tokens: Ints) -> Ints:
        k = np.searchsorted(self._start, tokens, side="right") - 1
        covered: Ints = self._before[k] + np.minimum(tokens - self._start[k], self._length[k])
        return covered


def concept_pairs(dataset: Dataset, track: str, shard: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """All pairs of a concept and a span of a shard, some at a time, in order of the spans.

    Yields (concept ids, start and end in the shard), int64 [n] each. A span that names a concept twice counts once.

    Raises: FormatError, ReadError.
    """
    tokens, num_ids = dataset.shard_starts[shard + 1] - dataset.shard_starts[shard], dataset.tracks[track].num_ids
    for start, end, record in whole_spans(dataset.reader, shard, track, 0, tokens, _CHUNK_TOKENS):
        offsets, ids = concepts_of(dataset.reader, shard, track, record, num_ids)
        span = np.repeat(np.arange(len(record)), np.diff(offsets))
        pairs = np.sort(span << 32 | ids, kind="stable")  # nearly sorted: a hundredth of the time of np.unique
        span, ids = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], 1 << 32)
        yield ids, start[span], end[span]
