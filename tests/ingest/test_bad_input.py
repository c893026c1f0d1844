"""Every kind of bad input: an error that names file and line, finished shards kept, no manifest."""

import datetime
import decimal
import json
import math
import re
import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import conceptloader as cl
from conceptloader.errors import InputError
from conceptloader.ingest.records.columns import Columns
from tests.cli.test_sessions import run, tokenizers, write
from tests.corpora.records import build, content

SECTIONS = Path(__file__).with_name("refusals.txt").read_text().split("\n== ")[1:]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition("\n")[0])
def test_lines(section, tmp_path, monkeypatch):
    """All of them in one file, each between two good lines, a blank one before it; and each in a table."""
    monkeypatch.chdir(tmp_path)
    options, good, *rows = section.strip().split("\n")
    bad = [row.encode().decode("unicode_escape").encode("latin-1").rpartition(b" => ") for row in rows]
    for name, text in tokenizers().items():
        write(tmp_path / name, [text], [])
    Path("names.txt").write_text("a\nverb\n")
    lines = [b"%s\n\n%s\n" % (good.encode(), line) for line, _, _ in bad]
    Path("in.jsonl").write_bytes(b"".join(lines) + good.encode())
    words = ["--out", "out", "--quiet", *options.split()]
    code, said = run(["build", "in.jsonl", *words])
    assert code == 1
    assert re.search(r"in.jsonl: line \d+: .*; no shard is finished: run again with --bad-records", said), said
    assert [name for name in content(Path("out")) if name.startswith(("00000", "manifest"))] == []
    assert run(["build", "in.jsonl", *words, "--bad-records", "bad.jsonl"])[0] == 0
    listed = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    told = {one["where"]: one["problem"] for one in listed}
    expected = {f"line {3 * k + 3}": part.decode() for k, (_, _, part) in enumerate(bad)}
    assert told.keys() == expected.keys()
    assert [(told[where], part) for where, part in expected.items() if part not in told[where]] == []
    assert cl.open_dataset("out").num_documents == len(bad) + 1
    for line, _, part in bad:
        try:
            row = json.loads(b"" if b"duplicate" in part or b"-1e400" in part else line)
            pq.write_table(pa.Table.from_pylist([dict.fromkeys(row) | json.loads(good), row]), "in.parquet")
        except (ValueError, TypeError, AttributeError, IndexError, OverflowError, pa.ArrowException):
            continue
        shutil.rmtree("out", ignore_errors=True)
        code, said = run(["build", "in.parquet", *words])
        assert (code, "in.parquet" in said) == (1, True), line


def table(**columns):
    return pa.table({k: values if isinstance(values, pa.Array) else pa.array(values) for k, values in columns.items()})


TWO = ["ab", "ab"]
TABLES = [
    (table(text=["ab", None]), "row 1: ", "expected a string"),
    (table(text=pa.array([b"ab", b"a\xff"]).view("string")), "row 1: ", "not UTF-8"),
    (table(text=TWO, spans=[[{"start": 0, "end": 1, "concepts": ["verb"]}], [None]]), "row 1: ", "found null"),
    (table(text=["ab"], spam=[1]), "", "found column 'spam'"),
    (
        table(text=TWO, metadata=pa.array([[("k", 1)], [("k", 1), ("k", 2)]], pa.map_("string", "int64"))),
        "row 1: ",
        "the duplicate key 'k'",
    ),
    (
        table(text=TWO, metadata=pa.array([None, [(1, 2)]], pa.map_("int64", "int64"))),
        "row 1: ",
        "found a map with the key 1",
    ),
    (table(text=TWO, x=pa.array([0, 10**15], pa.timestamp("s"))), "row 1: ", "too large|out of range"),
    (table(text=["ab"], x=pa.array([1], pa.time64("ns"))), "", r"found time64\[ns\]"),
    (table(text=TWO, x=pa.array([1000, 1001], pa.duration("ns"))), "row 1: ", "anosecond"),
    (table(tokens=[[1], [2, None]]), "row 1: ", "found null"),
    (table(tokens=[[1.0]]), "", "found type double"),
    (pa.table([["a"], ["b"]], names=["text", "text"]), "", "found columns text, text, expected each name once; rename"),
]


@pytest.mark.parametrize(("found", "where", "message"), TABLES)
def test_tables(tmp_path, found, where, message):
    source = tmp_path / "in.parquet"
    pq.write_table(found, source)
    more = {"vocab_size": 300, "no_eos": True} if "tokens" in found.column_names else {}
    if "x" in found.column_names:
        more["columns"] = Columns(metadata_columns=["x"])
    with pytest.raises(InputError, match=f"{source}: {where}.*({message})"):
        build([source], tmp_path / "out", **more)
    if where:
        assert build([source], tmp_path / "out", on_bad=lambda *_: None, **more).documents == 1


def test_metadata_of_the_types_of_parquet(tmp_path):
    """Times as text, and what JSON has no number for as null."""
    kinds = [pa.time64("us"), pa.timestamp("ns", "UTC"), pa.duration("us"), pa.duration("ns")]
    columns = {str(i): pa.array([1000], pa.int64()).cast(kind) for i, kind in enumerate(kinds)}
    values = {"day": datetime.date(2026, 1, 2), "price": decimal.Decimal("1.50"), "most": math.inf, "big": 2**63 - 1}
    more = {name: pa.array([value]) for name, value in values.items()} | {"tags": pa.array([[{"x": [math.nan, 0.1]}]])}
    pq.write_table(pa.table({"text": ["ab"], **columns, **more}), tmp_path / "in.parquet")
    build([tmp_path / "in.parquet"], tmp_path / "out", columns=Columns(metadata_columns=[*columns, *more], tracks={}))
    times = ["00:00:00.001000", "1970-01-01T00:00:00.000001+00:00", "0:00:00.001000", "0:00:00.000001"]
    rest = {"day": "2026-01-02", "price": "1.50", "most": None, "big": 2**63 - 1, "tags": [{"x": [None, 0.1]}]}
    [found] = cl.open_dataset(tmp_path / "out").spans("metadata", 0, 3).decode()
    assert found == {**dict(zip("0123", times, strict=True)), **rest}
    pq.write_table(pa.table({"text": ["a"], "raw": [b"x"]}), tmp_path / "raw.parquet")
    with pytest.raises(InputError, match=r"raw.parquet: row 0: json record: found \{'raw': b'x'\}"):
        build([tmp_path / "raw.parquet"], tmp_path / "no", columns=Columns(metadata_columns=["raw"], tracks={}))


@pytest.mark.parametrize("bad", [{0, 1}, {0, 1, 2}, {1, 2}, {0, 2, 4}, {*range(0, 40, 3), *range(20)}])
@pytest.mark.parametrize("kind", [pa.string(), pa.string_view()], ids=str)
def test_many_bad_rows_of_a_table(bad, kind, tmp_path):
    """In whatever type, also where no row or no neighbours are left, and in a field of spans that pyarrow rejects."""
    rows = [
        {"text": "abc", "spans": [{"start": 0, "end": 3, "concepts": None if k in bad else ["a"]}]}
        for k in range(max(bad) + 2)
    ]
    table = pa.Table.from_pylist(rows)
    pq.write_table(table.set_column(0, "text", table["text"].cast(kind)), tmp_path / "in.parquet")
    found = []
    options = {"tokenizer": "bytes", "vocabulary": {"concepts": ["a"]}}
    made = cl.build(tmp_path / "in.parquet", tmp_path / "out", on_bad=lambda *one: found.append(one), **options)
    assert [where for _, where, _ in found] == [f"row {k}" for k in sorted(bad)]
    assert made.documents == len(rows) - len(bad)


def test_line_for_labels(tmp_path):
    """The line for DuckDB in the message writes what all columns mean."""
    labels, source = {"_type": "ClassLabel", "names": ["world", "it's"]}, tmp_path / "it's.parquet"
    features = json.dumps({"info": {"features": {'a "b': labels, "more": {"_type": "Json"}}}})
    rows = table(**{"text": ["t"] * 3, 'a "b': [1, 0, -1], "more": ['{"y": [1]}', "null", None]})
    pq.write_table(rows.replace_schema_metadata({"huggingface": features}), source)
    columns = Columns(metadata_columns=['a "b', "more"], tracks={})
    with pytest.raises(InputError) as error:
        build([source], tmp_path / "no", columns=columns)
    duckdb.sql(re.search(r"COPY .*json\)", str(error.value))[0])
    build([f"{source}.jsonl"], tmp_path / "out", columns=columns)
    ds = cl.open_dataset(tmp_path / "out")
    found = ds.spans("metadata", 0, ds.num_tokens).decode()
    assert found == [{'a "b': "it's", "more": {"y": [1]}}, *({'a "b': one, "more": None} for one in ("world", None))]
