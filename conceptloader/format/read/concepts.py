"""Which spans carry which concepts: by reading a track. index.py reads its index, where a command has made one."""

from collections.abc import Iterator

import numpy as np

from conceptloader.format.read.bulk import concepts_of, spans_of, whole_spans
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints

_CHUNK_TOKENS = 1 << 22


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


def concept_pairs(
    dataset: Dataset, track: str, shard: int, low: int = 0, high: int | None = None, *, any_concept: bool = False
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """All pairs of a concept and a span of tokens [low, high) of a shard, some at a time; of a concept in their order.

    Spans of a concept that overlap, on levels of the track, are one, and so is a span that names a concept twice.
    any_concept: all concepts are number 0, and what has no concept too.

    Yields (concept ids, start and end in the shard), int64 [n] each, by start.

    Raises: FormatError, ReadError.
    """
    high = dataset.shard_starts[shard + 1] - dataset.shard_starts[shard] if high is None else high
    reader, num_ids, levels = dataset.files, dataset.tracks[track].num_ids, dataset.levels[track]
    if len(levels) == 1:  # which are in order, as they are read: a quarter of the time
        for start, end, record in whole_spans(reader, shard, track, low, high, _CHUNK_TOKENS):
            ids, span = np.zeros_like(record), np.arange(len(record))
            if not any_concept:
                offsets, ids = concepts_of(reader, shard, track, record, num_ids)
                pairs = np.sort(np.repeat(span, np.diff(offsets)) << 32 | ids, kind="stable")
                span, ids = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], 1 << 32)
            yield ids, start[span], end[span]
        return
    carried = (np.zeros(0, np.int64),) * 3
    for at in range(low, high, _CHUNK_TOKENS):
        stop, parts = min(at + _CHUNK_TOKENS, high), [carried]
        for level in levels:
            spans, record = spans_of(reader, shard, level, np.array([at]), np.array([stop]))
            # One token further than the chunk: so a span meets its other part, which is carried from chunk to chunk.
            first, end = np.maximum(spans.first, max(at - 1, low)), np.minimum(spans.end, min(stop + 1, high))
            ids, span = np.zeros_like(record), np.arange(len(record))
            if not any_concept:
                offsets, ids = concepts_of(reader, shard, level, record, num_ids)
                span = np.repeat(span, np.diff(offsets))
            parts.append((ids, first[span], end[span]))
        ids, start, end = united(*map(np.concatenate, zip(*parts, strict=True)))
        whole = end <= stop
        carried = ids[~whole], start[~whole], np.full(len(whole) - whole.sum(), stop)
        yield ids[whole], start[whole], end[whole]


def united(key: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Intervals [start, end) of each key, those that overlap made one; by start."""
    if not len(key):
        return key, start, end
    order = np.lexsort((start, key))
    key, start, end = key[order], start[order], end[order]
    # As if the keys lay end to end: then one begins where no interval before reaches.
    shift = np.cumsum(np.diff(key, prepend=key[0]) != 0) * (int(end.max()) + 1)
    reach = np.maximum.accumulate(shift + end)
    begins = np.flatnonzero(np.append(True, (shift + start)[1:] >= reach[:-1]))
    last = np.append(begins[1:], len(key)) - 1
    key, start, end = key[begins], start[begins], (reach - shift)[last]
    order = np.argsort(start, kind="stable")
    return key[order], start[order], end[order]
