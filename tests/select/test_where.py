"""Expressions against a walk through every document: of columns, concepts, scores, of several tracks. Those of tokens
are drawn in tests/trace/test_answers.py."""

import itertools
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.trace.index import build_index
from conceptloader.trace.subset import SubsetOptions, make_subsets
from tests.trace.walk import OPERATORS, join, no

COUNT = 60
NAMES = ["law", "red wine", "not", "7"]


def spans_of(number):
    """(tokens, spans by track) of a document; some are empty, some without spans."""
    rng = np.random.default_rng(number)
    size = int(rng.integers(0, 12))
    found = {"plain": [], "scored": []}
    for spans in found.values():
        cuts = sorted(rng.integers(0, size + 1, 4).tolist())
        for a, b in itertools.pairwise(cuts):
            if a < b and rng.random() < 0.7:
                ids = rng.choice(len(NAMES), int(rng.integers(1, 3)), replace=False).tolist()
                spans.append((a, b, ids, (rng.integers(0, 5, len(ids)) / 4).tolist()))
    return size, found


def record_of(number):
    """The record of a document in the track "text"."""
    record = {"n": number % 7 if number % 3 else None, "big": 2**53 + number % 2}
    return record if number % 4 else {**record, "deep": {"flag": number % 8 == 0, "word": "a'b\u00e9"[number % 3 :]}}


ROWS = [
    {"id": f"doc-{k}", "n": None if k % 5 == 0 else k % 7,
     "x": [float("nan"), None][k // 4 % 2] if k % 4 == 0 else k / 8,
     "word": "abc"[k % 3], "flag": None if k % 6 == 0 else k % 2 == 0}
    for k in range(0, COUNT, 2)
]  # fmt: skip


@pytest.fixture(scope="module", params=["scanned", "indexed"])
def dataset(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    tracks = {
        "plain": cl.writing.TrackOptions(vocabulary=NAMES),
        "scored": cl.writing.TrackOptions(vocabulary=NAMES, parameters={"scores": "f4"}),
        "text": cl.writing.TrackOptions(codec="json"),
    }
    build = cl.writing.create_writer(folder / "data", cl.writing.BuildOptions(tracks=tracks), plan=[0, 1])
    for shard in range(2):
        with build.shard(shard) as writer:
            for number in range(COUNT * shard // 2, COUNT * (shard + 1) // 2):
                size, found = spans_of(number)
                spans = {
                    "plain": [(a, b, ids) for a, b, ids, _ in found["plain"]],
                    "scored": [(a, b, (ids, scores)) for a, b, ids, scores in found["scored"]],
                    **({"text": [(0, size, record_of(number))]} if size else {}),
                }
                writer.add_document([number] * size, spans=spans, id=f"doc-{number}")
    cl.writing.finalize(folder / "data")
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "meta.parquet")
    if request.param == "indexed":
        build_index(folder / "data", track="plain")
    with cl.open_dataset(folder / "data") as found:
        yield found


# A test is an expression, and a function of a row and of spans, (track, ids, scores) of a document or of a token:
# whether it holds there, None for null.


def carries(track, name, op="", score=0):
    def holds(_, spans):
        found = [
            one
            for other, ids, scores in spans
            for id, one in zip(ids, scores, strict=True)
            if (other, NAMES[id]) == (track, name)
        ]
        if op:
            return bool(OPERATORS[op](max(found), score)) if found else None
        return bool(found)

    return f"score({track}, '{name}') {op} {score}" if op else f"'{name}' in {track}", holds


def of(text, name, holds):
    """A test of one column, which is null where that is: of documents, or of a table by their ids."""
    if name in ROWS[0] and name != "id":
        text = re.sub(rf"(?<!')\b{name}\b", f"(select {name} from t where t.id = documents.id)", text)
    return text, lambda row, _: None if row.get(name) is None else holds(row[name])


def null(name):
    return of(f"{name} is null", name, bool)[0], lambda row, _: row.get(name) is None


def compare(name, op, value):
    return of(f"{name} {op} {value}", name, lambda found: bool(OPERATORS[op](found, value)))


CONCEPTS = st.one_of(
    st.builds(carries, st.just("plain"), st.sampled_from(NAMES)),
    st.builds(
        carries, st.just("scored"), st.sampled_from(NAMES), st.sampled_from(sorted(OPERATORS)),
        st.sampled_from([0, 0.25, 0.5, 1]),
    ),
)  # fmt: skip
KEYS = [
    of(f"(text->>'$.{path}'){text}", f"text.{path}", holds)
    for path, text, holds in (
        ("n", "::double > 2.5", lambda n: n > 2.5), ("n", "::double in (1, 4.0)", lambda n: n in (1, 4)),
        ("big", "::bigint = 9007199254740993", lambda n: n == 2**53 + 1), ("deep.flag", "::bool", bool),
        ("deep.word", " > 'b'", lambda word: word > "b"), ("gone", " = '1'", bool),
        ("deep.word", " not in ('b\u00e9')", lambda word: word != "b\u00e9"),
    )
]  # fmt: skip
COLUMNS = st.one_of(
    st.builds(
        compare, st.sampled_from(["n", "x", "tokens", "document"]), st.sampled_from(sorted(OPERATORS)),
        st.sampled_from([0, 3, 2.5, -1, 1e1]),
    ),
    st.sampled_from(["n", "x", "word"]).map(null),
    st.sampled_from([
        *KEYS, of("word = 'b'", "word", lambda word: word == "b"), of("word > 'a'", "word", lambda word: word > "a"),
        of("upper(word) like 'B%'", "word", lambda word: word == "b"), of("flag != true", "flag", lambda on: not on),
        of("n not in (1, 2, 6)", "n", lambda n: n not in (1, 2, 6)), of("id = 'doc-4'", "id", lambda id: id == "doc-4"),
        of("n % 2 = 1", "n", lambda n: n % 2 == 1), of("x between 1 and 3", "x", lambda x: 1 <= x <= 3),
    ]),
)  # fmt: skip


def expressions(tests):
    words = st.sampled_from(["and", "or"])
    return st.recursive(
        tests, lambda inner: st.one_of(inner.map(no), st.builds(join, inner, words, inner)), max_leaves=6
    )


@settings(max_examples=40)
@given(expressions(st.one_of(COLUMNS, CONCEPTS)))
def test_documents(dataset, asked):
    text, holds = asked
    meta = {row["id"]: {key: None if value != value else value for key, value in row.items()} for row in ROWS}
    expected = []
    for number in range(COUNT):
        size, found = spans_of(number)
        record = record_of(number) if size else {}
        flat = {**record, **{f"deep.{key}": value for key, value in record.get("deep", {}).items()}}
        keys = {f"text.{key}": value for key, value in flat.items()}
        row = {**keys, **meta.get(f"doc-{number}", {}), "id": f"doc-{number}", "tokens": size, "document": number}
        spans = [(track, ids, scores) for track, some in found.items() for _, _, ids, scores in some]
        expected.append(holds(row, spans))
    ask = SubsetOptions(where=f"({text}) is not false", tables=[f"t={Path(dataset.path).parent}/meta.parquet"])
    wanted = [f"doc-{k}" for k, one in enumerate(expected) if one is not False and spans_of(k)[0]]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("conceptloader.trace.documents.CHUNK", 17)
        patch.setattr("conceptloader.trace.concepts._CHUNK_TOKENS", 40)
        if not wanted:
            with pytest.raises(ConfigError, match="no document of 60"):
                make_subsets(dataset.path, f"{folder}/view", ask)
            return
        assert make_subsets(dataset.path, f"{folder}/view", ask).unknown == 0
        with cl.open_dataset(f"{folder}/view", roots=["/"]) as view:
            assert [view.document_id(k) for k in range(len(view))] == wanted
        unsure = SubsetOptions(where=f"({text}) or document = 1", tables=ask.tables)
        unknown = [k for k, one in enumerate(expected) if one is None and k != 1]
        assert make_subsets(dataset.path, f"{folder}/more", unsure).unknown == len(unknown)
