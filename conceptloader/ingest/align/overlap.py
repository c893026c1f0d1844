"""Spans that overlap or nest: refused, spread over levels, or cut into segments that carry the union."""

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.read.bulk import pairs
from conceptloader.format.spec.columns import Ints
from conceptloader.ingest.records.batch import BadRow, Ragged, RawSpans


def resolve(spans: RawSpans, overlap: str, levels: int) -> list[RawSpans]:
    """Disjoint spans in order, for each of `levels` levels (one, unless `overlap` is "levels").

    error: spans that overlap are an error. levels: each span, an outer one before an inner one, goes to the first
    level where nothing overlaps it. union: every boundary of a span is a boundary of segments, and a segment carries
    the concepts of all spans over it, ascending, each once, with the highest of its scores.

    Raises: BadRow for an overlap, or one deeper than `levels`.
    """
    spans = spans.take(_order(spans))
    if overlap == "union":
        return [_union(spans)]
    crossing = (spans.row[1:] == spans.row[:-1]) & (spans.start[1:] < spans.end[:-1])
    if not crossing.any():
        empty = spans.take(np.empty(0, np.int64))
        return [spans] + [empty] * (levels - 1 if overlap == "levels" else 0)
    if overlap == "error":
        i = int(np.argmax(crossing)) + 1
        raise BadRow(
            int(spans.row[i]),
            f"found span [{spans.start[i]}, {spans.end[i]}) over [{spans.start[i - 1]}, {spans.end[i - 1]}) (in "
            "tokens), expected spans that do not overlap, or share a token with --align any; say what to do with such "
            "spans (--overlap levels, or union for concepts)",
        )
    level = _levels(spans, crossing, levels)
    return [spans.take(np.flatnonzero(level == i)) for i in range(levels)]


def _order(spans: RawSpans) -> Ints:
    """By row and start, an outer one before an inner one, else as they came."""
    place = spans.row * (int(spans.start.max(initial=0)) + 1) + spans.start
    order: Ints = np.argsort(place, kind="stable")
    if (np.diff(place[order]) == 0).any():  # else the ends say nothing, and three times as long a sort
        order = np.lexsort((-spans.end, spans.start, spans.row))
    return order


def _levels(spans: RawSpans, crossing: NDArray[np.bool_], levels: int) -> Ints:
    """The level of each span, the first one where none is over its start; `crossing[i]`: span i + 1 overlaps span i."""
    result = np.zeros(len(spans.row), np.int64)
    for row in np.unique(spans.row[1:][crossing]).tolist():
        part = slice(*np.searchsorted(spans.row, [row, row + 1]).tolist())
        ends, found = list[int](), list[int]()  # of the last span on each level; the level of each span
        for start, end in zip(spans.start[part].tolist(), spans.end[part].tolist(), strict=True):
            level = next((k for k, stop in enumerate(ends) if stop <= start), len(ends))
            if level == levels:
                raise BadRow(
                    row,
                    f"found span [{start}, {end}) (in tokens) on level {levels + 1}, expected at most {levels} levels; "
                    "allow more (--levels)",
                )
            ends[level : level + 1] = [end]
            found.append(level)
        result[part] = found
    return result


def _union(spans: RawSpans) -> RawSpans:
    """Elementary segments, each with the ascending union of the concepts over it."""
    if not len(spans.row):
        return spans
    stride = int(spans.end.max()) + 1
    start, end = spans.row * stride + spans.start, spans.row * stride + spans.end
    borders = np.sort(np.concatenate([start, end]))
    borders = borders[np.diff(borders, prepend=-1) > 0]
    begin, last = np.searchsorted(borders, start), np.searchsorted(borders, end)
    # One pair for each span and each segment that it covers, then one for each concept of the span.
    span, segment = pairs(begin, last)
    concepts = spans.concepts.take(span)
    values = concepts.values
    scored = values.dtype.names is not None
    key = np.repeat(segment, np.diff(concepts.offsets)).astype(np.uint64) << np.uint64(32)
    key |= values["id"] if scored else values
    if scored:  # of equal concepts the one with the highest score comes first
        best = np.argsort(-values["score"], kind="stable")
        key, values = key[best], values[best]
    key, first = np.unique(key, return_index=True)
    covered = np.flatnonzero(np.bincount(segment))
    offsets = np.searchsorted(key, np.append(covered, covered[-1] + 1).astype(np.uint64) << np.uint64(32))
    row = borders[covered] // stride
    return RawSpans(
        row=row,
        start=borders[covered] - row * stride,
        end=borders[covered + 1] - row * stride,
        concepts=Ragged(values[first], offsets.astype(np.int64)),
    )
