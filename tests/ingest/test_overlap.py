"""Overlapping spans: levels and segments of documents at once are those of each, which tests/format looks at."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.errors import ConfigError
from conceptloader.format.overlap import split_levels, split_segments
from conceptloader.format.spec.columns import offsets_of
from conceptloader.ingest.align.overlap import resolve
from conceptloader.ingest.records.batch import BadRow, Ragged, RawSpans
from tests.raises import raises

Span = tuple[int, int, list[int]]
DOCUMENTS = st.lists(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(1, 12), st.lists(st.integers(0, 5), max_size=3)).map(
            lambda s: (s[0], s[0] + s[1], s[2])
        ),
        max_size=6,
    ),
    max_size=4,
)


def raw(documents: list[list[Span]]) -> RawSpans:
    rows = [(row, *span) for row, spans in enumerate(documents) for span in spans]
    concepts = [c for *_, found in rows for c in found]
    return RawSpans(
        np.array([row for row, *_ in rows], np.int64),
        np.array([start for _, start, _, _ in rows], np.int64),
        np.array([end for _, _, end, _ in rows], np.int64),
        Ragged(np.array(concepts, np.uint32), offsets_of([len(found) for *_, found in rows])),
    )


def plain(spans: RawSpans, documents: int) -> list[list[Span]]:
    result: list[list[Span]] = [[] for _ in range(documents)]
    for i, row in enumerate(spans.row.tolist()):
        found = spans.concepts.values[spans.concepts.offsets[i] : spans.concepts.offsets[i + 1]].tolist()
        result[row].append((int(spans.start[i]), int(spans.end[i]), found))
    return result


@given(DOCUMENTS)
def test_union(documents: list[list[Span]]) -> None:
    (found,) = resolve(raw(documents), "union", 1)
    assert plain(found, len(documents)) == [split_segments(spans) for spans in documents]


@given(DOCUMENTS)
def test_levels(documents: list[list[Span]]) -> None:
    found = [plain(level, len(documents)) for level in resolve(raw(documents), "levels", 6)]
    for row, spans in enumerate(documents):
        levels = [level[row] for level in found]
        wanted = split_levels(spans)
        assert levels == [*wanted, *([] for _ in range(6 - len(wanted)))]


@given(DOCUMENTS)
def test_error(documents: list[list[Span]]) -> None:
    crossing = [len(split_levels(spans)) > 1 for spans in documents]
    if any(crossing):
        with pytest.raises(BadRow) as error:
            resolve(raw(documents), "error", 1)
        assert crossing[error.value.row]
    else:
        (found,) = resolve(raw(documents), "error", 1)
        assert plain(found, len(documents)) == [sorted(spans, key=lambda s: s[:2]) for spans in documents]


def test_too_deep_and_unknown() -> None:
    nested = raw([[], [(0, 9, [1]), (1, 8, [2]), (2, 3, [3])]])
    with pytest.raises(BadRow, match="on level 3, expected at most 2") as error:
        resolve(nested, "levels", 2)
    assert error.value.row == 1
    with raises(ConfigError, "overlap", "'merge'"):
        resolve(nested, "merge", 2)
