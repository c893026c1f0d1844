"""Random odd rows of JSONL and Parquet: which tokens get which record, against a reader in plain Python."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import InputError, ReadError
from conceptloader.format.read import bulk, ids
from conceptloader.ingest.annotate import join as joining
from conceptloader.ingest.database import database, load
from tests.corpora.records import write_rows
from tests.corpora.small import written
from tests.raises import raises

DOCUMENTS, LENGTH, NAMES = 4, 3, ["a", "b"]
KINDS = {
    "ids": {},
    "names": {"vocabulary": NAMES},
    "scores": {"parameters": {"scores": "f4"}},
    "labels": {"vocabulary": NAMES, "column": {"concepts": "label"}},
    "numbers": {"codec": "numpy", "parameters": {"dtype": "f2"}},
    "integers": {"codec": "numpy", "parameters": {"dtype": "u1"}},
    "objects": {"codec": "json"},
}
ODD = st.sampled_from([None, True, 1.0, 1.5, -1, 1 << 64, "x", "\ud800", [], {}, [[0]], [None]])


@st.composite
def annotation(draw, kind):
    start = draw(st.integers(0, LENGTH - 1))
    found = {"start": start, "end": draw(st.integers(start + 1, LENGTH))}
    pool = NAMES if kind in ("names", "labels") else [0, 7]
    if kind == "labels" and draw(st.booleans()):
        found["concepts"] = draw(st.sampled_from(pool))
    elif kind in ("numbers", "integers"):
        found["value"] = draw(st.sampled_from([0.5, 2, [0.25], [], math.pi] if kind == "numbers" else [0, 200, [3, 4]]))
    elif kind == "objects":
        found["value"] = draw(st.sampled_from([{"a": 1}, [1, "x"], 3, None, {"b": [None]}]))
    else:
        found["concepts"] = draw(st.lists(st.sampled_from(pool), max_size=2))
    if kind == "scores":
        found["scores"] = [draw(st.sampled_from([0.5, 1, -2.0])) for _ in found["concepts"]]
    return found


@st.composite
def row(draw, kind):
    number = draw(st.integers(0, DOCUMENTS - 1))
    found = {"id": f"d{number}"} if draw(st.booleans()) else {"document": number}
    form = draw(st.sampled_from(["spans", "span", "whole"]))
    if form == "spans":
        found["spans"] = draw(st.lists(annotation(kind), max_size=2))
    else:
        found |= draw(annotation(kind))
        if form == "whole":
            del found["start"], found["end"]
    if draw(st.integers(0, 3)) == 0:  # one thing is wrong, or odd
        part = draw(st.sampled_from([found, *found["spans"]])) if found.get("spans") else found
        name = draw(st.sampled_from([*part, "id", "document", "start", "note"]))
        if draw(st.integers(0, 2)) and name != "note":
            part.pop(name, None)
        else:
            part[name] = draw(ODD)
    if kind == "labels":
        names = {"concepts": "label"}
        found = {names.get(name, name): value for name, value in found.items()}
        if type(found.get("spans")) is list:
            found["spans"] = [{names.get(name, name): value for name, value in one.items()} for one in found["spans"]]
    return found


class Wrong(Exception):
    """A row that cannot be read."""


def read(kind, row):
    """(document, start, end, record) of what a row annotates. Raises: Wrong."""
    theirs = {"concepts": "label"} if kind == "labels" else {}
    value = "value" if kind in ("numbers", "integers", "objects") else "concepts"
    fields = {"start", "end", value, *(["scores"] if kind == "scores" else [])}

    def ours(given, known):
        if type(given) is not dict or theirs.keys() & given.keys():
            raise Wrong
        found = {next((name for name, one in theirs.items() if one == key), key): given[key] for key in given}
        if found.keys() - known:
            raise Wrong
        return found

    def number(one):
        if type(one) is not int and (kind == "integers" or type(one) is not float):
            raise Wrong
        if kind == "integers" and not 0 <= one < 256:
            raise Wrong
        if kind == "numbers" and (not abs(one) < 65520 or (type(one) is int and float(np.float16(one)) != one)):
            raise Wrong
        return one if kind == "integers" else float(np.float16(one))

    def record(span, whole):
        given = span.get(value)
        if kind == "objects":
            if value not in span:
                raise Wrong
            return given
        if kind in ("numbers", "integers"):
            if given is None and whole:
                return Wrong  # no number, and no annotation
            return [number(one) for one in given] if type(given) is list else [number(given)]
        given = [given] if kind == "labels" and type(given) in (str, int) else given
        scores = [] if span.get("scores") is None else span["scores"]
        if type(given) is not list or len({*map(type, given)}) > 1 or type(scores) is not list:
            raise Wrong
        names = NAMES if kind in ("names", "labels") else []
        ids = [names.index(one) if one in names and type(one) is str else one for one in given]
        if any(type(one) is not int or not 0 <= one < (len(names) or 1 << 32) for one in ids):
            raise Wrong
        if kind != "scores":
            return ids
        if len(scores) != len(ids) or not {*map(type, scores)} <= {int, float}:
            raise Wrong
        return [ids, scores]

    def annotated(span, is_row):
        start, end = span.get("start"), span.get("end")
        whole = is_row and start is None and end is None
        if not whole and not (type(start) is type(end) is int and 0 <= start < end < 1 << 32):
            raise Wrong
        return (0, LENGTH, record(span, True)) if whole else (start, end, record(span, False))

    row = ours(row, {"id", "document", "spans", *fields})
    name, document, spans = row.get("id"), row.get("document"), row.get("spans")
    name = str(name) if type(name) is int else name
    if (name in (None, "")) == (document is None) or type(name) not in (str, type(None)) or name == "\ud800":
        raise Wrong
    if document is None:
        document = int(name[1:]) if name[0] == "d" else -1
    elif type(document) is not int or not 0 <= document < 1 << 63:
        raise Wrong
    if spans is None:
        found = [annotated(row, True)]
    elif type(spans) is not list or any(row.get(field) is not None for field in fields):
        raise Wrong
    else:
        found = [annotated(ours(span, fields), False) for span in spans]
    return [(document, *one) for one in found if one[2] is not Wrong]


def build(path):
    """The documents d0, d1, ...: the first in a shard of its own."""
    documents = [([1, 2, 3], {}, f"d{k}") for k in range(DOCUMENTS)]
    return written(path, documents[:1], documents[1:])


@settings(max_examples=120)
@given(st.data(), st.sampled_from([*KINDS]), st.booleans())
def test_annotations_are_what_a_plain_reader_finds(tmp_path_factory, data, kind, parquet):
    rows = data.draw(st.lists(row(kind), min_size=1, max_size=6))
    folder = tmp_path_factory.mktemp("rows")
    path = write_rows(folder / "rows.jsonl", rows)
    if parquet:
        names = {name: None for one in rows for name in one}
        try:
            table = pa.Table.from_pylist([{**names, **one} for one in rows])
            pq.write_table(table, folder / "rows.parquet", row_group_size=4)
            path = folder / "rows.parquet"
            rows = table.to_pylist()  # nulls where there was nothing
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            pass
    wrong, unknown, held = set(), False, [[] for _ in range(DOCUMENTS * LENGTH)]
    for i, one in enumerate(rows):
        try:
            for document, start, end, record in read(kind, one):
                unknown |= not 0 <= document < DOCUMENTS or end > LENGTH
                for k in range(start, min(end, LENGTH)) if not unknown else ():
                    held[document * LENGTH + k].append(json.dumps(record, sort_keys=True))
        except Wrong:
            wrong.add(i + (path.suffix == ".jsonl"))
    if unknown or not any(held):
        return
    ds = build(folder / "ds")
    options = {"track": "t", "span_unit": "token", "overlap": "levels", "levels": 16, **KINDS[kind]}
    bad = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "_IDS", data.draw(st.integers(1, 5)))
        patch.setattr(ids, "_READ", data.draw(st.integers(1, 5)))
        patch.setattr(bulk, "_HOLE_BYTES", data.draw(st.integers(0, 24)))
        cl.annotate(ds, [path], folder / "out", on_bad=lambda _, place, __: bad.add(int(place.split()[-1])), **options)
        assert cl.verify(folder / "out", full=True) == []
    assert bad == wrong
    with cl.open_dataset(folder / "out") as made:
        found = [[] for _ in held]
        for track in made.tracks:
            spans = made.spans(track, 0, made.num_tokens)
            records = [one.tolist() if isinstance(one, np.ndarray) else one for one in spans.decode()]
            if kind == "scores":
                cuts = spans.offsets[1:-1]
                records = [[a, b.tolist()] for a, b in zip(records, np.split(spans.scores, cuts), strict=False)]
            for start, end, record in zip(spans.start.tolist(), spans.end.tolist(), records, strict=True):
                for k in range(start, end):
                    found[k].append(json.dumps(record, sort_keys=True))
    if kind == "scores":  # 1 and 1.0
        held = [[json.dumps([a, [float(x) for x in b]]) for a, b in map(json.loads, one)] for one in held]
    assert [sorted(one) for one in found] == [sorted(one) for one in held]


def test_texts_that_are_not_utf_8_are_named(tmp_path):
    broken = {"id": pa.array([b"d0", b"\xff"]).view("string"), "start": [0, 2], "end": [1, 3], "concepts": [[1], [2]]}
    pq.write_table(pa.table(broken), tmp_path / "rows.parquet")
    ds = build(tmp_path / "ds")
    with raises(InputError, "rows.parquet: row 1", "Invalid UTF8"):
        cl.annotate(ds, [tmp_path / "rows.parquet"], tmp_path / "out", track="c")


def test_little_memory(tmp_path):
    """Too little is an error that leaves nothing; what does not fit goes to files, which are removed."""
    build(tmp_path / "ds")
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": "d1", "concepts": [7]}])
    with raises(ReadError, "out", "Out of Memory", fix="--sort-memory"):
        cl.annotate(tmp_path / "ds", [rows], tmp_path / "out", track="c", sort_memory=1000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds", "rows.jsonl"]
    with (
        raises(InputError, found="no such"),
        database(str(tmp_path), "24MB", lambda _: InputError("", "no such")) as db,
    ):
        load(db, "numbers", "n BIGINT", [[np.arange(1_000_000)[::-1]]])
        db.execute("CREATE TABLE sorted AS SELECT n, hash(n) AS h FROM numbers ORDER BY n")
        assert list(tmp_path.glob(".spill.*/*")), db.sql("FROM duckdb_temporary_files()")
        db.execute("FROM nothing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds", "rows.jsonl"]
