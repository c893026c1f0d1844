"""Overlapping spans as levels and as segments, against counting token by token."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.errors import InputError
from conceptloader.format.overlap import split_levels, split_segments
from tests.raises import raises

SPANS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 8), st.lists(st.integers(0, 5), max_size=3)).map(
        lambda span: (span[0], span[0] + span[1], span[2])
    ),
    max_size=12,
)


@given(SPANS)
def test_segments_carry_the_union_of_what_covers_them(spans: list[tuple[int, int, list[int]]]) -> None:
    segments = split_segments(spans)
    borders = {border for start, end, _ in spans for border in (start, end)}
    covered = {}
    for start, end, ids in segments:
        assert start in borders
        assert end in borders
        assert not borders & set(range(start + 1, end))
        covered.update(dict.fromkeys(range(start, end), ids))
    assert segments == sorted(segments)
    for token in range(30):
        over = [ids for start, end, ids in spans if start <= token < end]
        assert (token in covered) == bool(over)
        assert covered.get(token, []) == sorted({concept for ids in over for concept in ids})


@given(SPANS)
def test_levels_keep_every_span_whole_on_as_few_levels_as_possible(spans: list[tuple[int, int, list[int]]]) -> None:
    levels = split_levels(spans)
    assert sorted(span for level in levels for span in level) == sorted(spans)
    for level in levels:
        assert all(a[1] <= b[0] for a, b in pairwise(level))
    deepest = max((sum(start <= token < end for start, end, _ in spans) for token in range(30)), default=0)
    assert len(levels) == deepest


def test_the_outermost_of_nested_spans_is_on_level_0() -> None:
    assert split_levels([(2, 3, "c"), (0, 9, "a"), (1, 5, "b"), (5, 9, "d")]) == [
        [(0, 9, "a")],
        [(1, 5, "b"), (5, 9, "d")],
        [(2, 3, "c")],
    ]


@pytest.mark.parametrize("split", [split_levels, split_segments])
def test_empty_spans_are_refused(split: object) -> None:
    with raises(InputError, found="[3, 3)"):
        split([(3, 3, [])])
