"""Expressions against a walk through every document and token: of columns, concepts, scores, of several tracks."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.index.build import build_index
from conceptloader.subset.holds import DocumentTest, TokenTest
from conceptloader.trace.columns import DocumentColumns
from conceptloader.trace.ranges import document_ranges
from conceptloader.trace.where import OPERATORS, Where, parse_where

COUNT = 60
NAMES = ["law", "red wine", "not", "7"]
Spans = dict[str, list[tuple[int, int, list[int], list[float]]]]


def spans_of(number: int) -> tuple[int, Spans]:
    """(tokens, spans by track) of a document; some are empty, some without spans."""
    rng = np.random.default_rng(number)
    size = int(rng.integers(0, 12))
    found: Spans = {"plain": [], "scored": []}
    for spans in found.values():
        cuts = sorted(rng.integers(0, size + 1, 4).tolist())
        for a, b in itertools.pairwise(cuts):
            if a < b and rng.random() < 0.7:
                ids = rng.choice(len(NAMES), int(rng.integers(1, 3)), replace=False).tolist()
                spans.append((a, b, ids, (rng.integers(0, 5, len(ids)) / 4).tolist()))
    return size, found


def record_of(number: int) -> dict[str, Any]:
    """The record of a document in the tracks "packed" (msgpack) and "text" (json)."""
    record: dict[str, Any] = {"n": number % 7 if number % 3 else None, "big": 2**53 + number % 2}
    return record if number % 4 else {**record, "deep": {"flag": number % 8 == 0, "word": "a'b\u00e9"[number % 3 :]}}


ROWS = [
    {"id": f"doc-{k}", "n": None if k % 5 == 0 else k % 7, "x": None if k % 4 == 0 else k / 8, "word": "abc"[k % 3],
     "flag": None if k % 6 == 0 else k % 2 == 0}
    for k in range(0, COUNT, 2)
]  # fmt: skip


@pytest.fixture(scope="module", params=["scanned", "indexed"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp(request.param)
    tracks = {
        "plain": cl.writing.TrackOptions(vocabulary=NAMES),
        "scored": cl.writing.TrackOptions(vocabulary=NAMES, parameters={"scores": "f4"}),
        "packed": cl.writing.TrackOptions(codec="msgpack"),
        "text": cl.writing.TrackOptions(codec="json"),
    }
    build = cl.writing.create_writer(folder / "data", cl.writing.BuildOptions(tracks=tracks), plan=[0, 1])
    for shard in range(2):
        with build.shard(shard) as writer:
            for number in range(COUNT * shard // 2, COUNT * (shard + 1) // 2):
                size, found = spans_of(number)
                spans: dict[str, Any] = {
                    "plain": [(a, b, ids) for a, b, ids, _ in found["plain"]],
                    "scored": [(a, b, (ids, scores)) for a, b, ids, scores in found["scored"]],
                    **{track: [(0, size, record_of(number))] for track in ("packed", "text") if size},
                }
                writer.add_document([number] * size, spans=spans, id=f"doc-{number}")
    cl.writing.finalize(folder / "data")
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "meta.parquet")
    if request.param == "indexed":
        build_index(folder / "data", track="plain")
    with cl.open_dataset(folder / "data") as found:
        yield found


def quoted(name: str) -> str:
    return name if name == "law" else f"'{name}'"


CONCEPTS = st.one_of(
    st.builds(lambda name: f"plain:{quoted(name)}", st.sampled_from(NAMES)),
    st.builds(
        lambda name, op, score: f"scored:{quoted(name)} {op} {score}",
        st.sampled_from(NAMES), st.sampled_from(sorted(OPERATORS)), st.sampled_from([0, 0.25, 0.5, 1]),
    ),
)  # fmt: skip
COLUMNS = st.one_of(
    st.builds(
        lambda name, op, value: f"{name} {op} {value}",
        st.sampled_from(["n", "x", "tokens", "document"]), st.sampled_from(sorted(OPERATORS)),
        st.sampled_from([0, 3, 2.5, -1, "1e1"]),
    ),
    st.sampled_from(["n is null", "x is not null", "word = 'b'", "word > 'a'", "flag = true", "flag != true"]),
    st.builds(
        lambda track, test: f"{track}.{test}",
        st.sampled_from(["packed", "text"]),
        st.sampled_from([
            "n > 2.5", "n in (1, 4.0)", "n is null", "big = 9007199254740993", "big < 9007199254740993", "deep is null",
            "deep.flag = true", "deep.word > 'b'", "deep.word not in ('b\u00e9')", "deep.word.gone is null", "gone = 1",
        ]),
    ),
    st.sampled_from(["n in (1, 2, 6)", "n not in (1, 2, 6)", "word not in ('a')", "not n = 3", "id = 'doc-4'"]),
)  # fmt: skip


def expressions(tests: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.recursive(
        tests,
        lambda inner: st.one_of(
            inner.map(lambda one: f"not ({one})"),
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda three: f"({' '.join(three)})"),
        ),
        max_leaves=6,
    )


def holds(where: Where, row: dict[str, Any], spans: list[Any]) -> bool:
    """spans: (track, ids, scores) of a document or of a token."""
    if where.operator in ("and", "or"):
        inner = [holds(part, row, spans) for part in where.parts]
        return all(inner) if where.operator == "and" else any(inner)
    if where.operator == "not":
        return not holds(where.parts[0], row, spans)
    if where.operator == "concept":
        return any(
            track == where.name
            and NAMES[id] == where.concept
            and (not where.compare or bool(OPERATORS[where.compare](score, where.values[0])))
            for track, ids, scores in spans
            for id, score in zip(ids, scores, strict=True)
        )
    value = row.get(where.name)
    if where.compare == "null":
        return value is None
    if value is None:
        return False
    if where.compare == "in":
        return value in where.values
    return bool(OPERATORS[where.compare](value, where.values[0]))


@settings(max_examples=60)
@given(expressions(st.one_of(COLUMNS, CONCEPTS)))
def test_documents(dataset: cl.Dataset, text: str) -> None:
    where = parse_where(text)
    meta = {row["id"]: row for row in ROWS}
    expected = []
    for number in range(COUNT):
        size, found = spans_of(number)
        record = record_of(number) if size else {}
        flat = {**record, **{f"deep.{key}": value for key, value in record.get("deep", {}).items()}}
        keys = {f"{track}.{key}": value for track in ("packed", "text") for key, value in flat.items()}
        row = {**keys, **meta.get(f"doc-{number}", {}), "id": f"doc-{number}", "tokens": size, "document": number}
        spans = [(track, ids, scores) for track, some in found.items() for _, _, ids, scores in some]
        expected.append(holds(where, row, spans))
    columns = DocumentColumns(dataset, metadata=str(Path(dataset.path).parent / "meta.parquet"))
    test = DocumentTest(dataset, text, columns)
    for cuts in ((0, COUNT), (0, 1, 17, COUNT)):
        found_rows = []
        for low, high in itertools.pairwise(cuts):
            documents = np.arange(low, high)
            found_rows += test(columns.table(documents, test.columns), *document_ranges(dataset, documents)).tolist()
        assert found_rows == expected


@settings(max_examples=50)
@given(expressions(CONCEPTS), st.sampled_from([40, 1 << 20]))
def test_tokens(dataset: cl.Dataset, text: str, chunk: int) -> None:
    where = parse_where(text)
    expected = []
    for number in range(COUNT):
        size, found = spans_of(number)
        for token in range(size):
            spans = [
                (track, ids, scores) for track, some in found.items() for a, b, ids, scores in some if a <= token < b
            ]
            expected.append(holds(where, {}, spans))
    test = TokenTest(dataset, text)
    test.sources.chunk = chunk
    for first, last in ((0, len(expected)), (5, len(expected) - 7)):
        held = np.zeros(len(expected), bool)
        start, end = test(first, last)
        for a, b in zip(start.tolist(), end.tolist(), strict=True):
            assert first <= a < b <= last
            held[a:b] = True
        assert held[first:last].tolist() == expected[first:last]
        assert (start[1:] > end[:-1]).all(), "the longest pieces"
