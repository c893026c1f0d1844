"""Spans that overlap or nest, turned into spans that do not: into levels, or into elementary segments."""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

from conceptloader.errors import InputError

T = TypeVar("T")


def split_levels(spans: Iterable[tuple[int, int, T]]) -> list[list[tuple[int, int, T]]]:
    """Each span whole, on the first level where it fits: one track per level.

    Spans are taken by start, longer ones first, so that of nested spans the outermost is on level 0. As few levels as
    the deepest overlap has spans. Within a level spans are in order and do not overlap.

    Raises: InputError for an empty or reversed span.
    """
    levels: list[list[tuple[int, int, T]]] = []
    free: list[int] = []  # numbers of the levels that are free now
    busy: list[tuple[int, int]] = []  # (end of its last span, level)
    for span in _sorted(spans):
        while busy and busy[0][0] <= span[0]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free.append(len(levels))
            levels.append([])
        level = heapq.heappop(free)
        levels[level].append(span)
        heapq.heappush(busy, (span[1], level))
    return levels


def split_segments(spans: Iterable[tuple[int, int, Sequence[int]]]) -> list[tuple[int, int, list[int]]]:
    """Elementary segments: cut at every span boundary, each with the sorted union of the concepts over it.

    Tokens that no span covers are omitted. Raises: InputError for an empty or reversed span.
    """
    ordered = _sorted(spans)
    borders = sorted({border for start, end, _ in ordered for border in (start, end)})
    result: list[tuple[int, int, list[int]]] = []
    open_spans: list[tuple[int, int]] = []  # (end, number)
    counts: Counter[int] = Counter()
    nearest = 0  # of `ordered`, the first that has not begun
    for start, end in pairwise(borders):
        while open_spans and open_spans[0][0] <= start:
            counts.subtract(set(ordered[heapq.heappop(open_spans)[1]][2]))
        while nearest < len(ordered) and ordered[nearest][0] == start:
            heapq.heappush(open_spans, (ordered[nearest][1], nearest))
            counts.update(set(ordered[nearest][2]))
            nearest += 1
        counts = +counts  # drop concepts whose spans have all ended
        if open_spans:
            result.append((start, end, sorted(counts)))
    return result


def _sorted(spans: Iterable[tuple[int, int, T]]) -> list[tuple[int, int, T]]:
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    for start, end, _ in ordered:
        if start >= end:
            raise InputError(
                "", f"span [{start}, {end})", "start < end", "drop empty spans before split_levels or split_segments"
            )
    return ordered
