"""New tracks over existing tokens, against a brute-force account of which token belongs to which record."""

import gzip
import json
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import ConfigError, InputError, ReadError
from conceptloader.format.read import bulk, ids
from conceptloader.format.read.bulk import records_of
from conceptloader.format.read.values import decode_all
from conceptloader.format.tools.verify import verify
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.ingest.annotate import join as joining
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.database import database, load
from conceptloader.ingest.records.tokenizer import BytesTokenizer
from tests.corpora.small import written
from tests.raises import raises

Rows = list[dict[str, Any]]


def build(path: Path, shards: list[list[list[int]]], ids: bool = True, tracks: bool = False) -> Path:
    """Documents of tokens in shards; ids are d0, d1, ... through all of them; with `tracks`, each document of the track
    `old` has the record [number]."""
    options = cl.writing.BuildOptions(tracks={"old": cl.writing.TrackOptions()} if tracks else {})
    made = cl.writing.create_writer(path, options, plan=[None] * len(shards))
    number = 0
    for shard, documents in enumerate(shards):
        with made.shard(shard) as writer:
            for tokens in documents:
                spans = {"old": [(0, len(tokens), [number])]} if tracks and tokens else None
                writer.add_document(tokens, spans=spans, id=f"d{number}" if ids else "")
                number += 1
    cl.writing.finalize(path)
    return path


def write_rows(path: Path, rows: Rows) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def owners(ds: cl.Dataset, level: str) -> list[Any]:
    """For each token of the dataset the decoded record that it belongs to on a level of a track, or None."""
    result: list[Any] = [None] * ds.num_tokens
    for shard, starts, ends, numbers in ds.span_places(level, 0, ds.num_tokens):
        records = decode_all(ds.codec(level), records_of(ds.reader, shard, level, numbers), "")
        for start, end, record in zip(starts.tolist(), ends.tolist(), records, strict=True):
            result[start:end] = [record.tolist() if hasattr(record, "tolist") else record] * (end - start)
    return result


documents = st.lists(st.integers(0, 9), max_size=8)
corpora = st.lists(st.lists(documents, min_size=1, max_size=6), min_size=1, max_size=3).filter(
    lambda corpus: any(tokens for shard in corpus for tokens in shard)
)


@settings(max_examples=30)
@given(corpora, st.data())
def test_every_token_gets_its_record(corpus: list[list[list[int]]], data: st.DataObject) -> None:
    flat = [tokens for shard in corpus for tokens in shard]
    suffix = data.draw(st.sampled_from([".jsonl", ".jsonl.gz", ".parquet"]))
    by_id = data.draw(st.booleans())
    rows: Rows = []
    expected: list[Any] = []
    for number, tokens in enumerate(flat):
        key = {"id": f"d{number}"} if by_id else {"document": number}
        borders = sorted(data.draw(st.sets(st.integers(0, len(tokens)))))
        found = [None] * len(tokens)
        for start, end in zip(borders[::2], borders[1::2], strict=False):
            concepts = data.draw(st.lists(st.integers(0, 5), max_size=2))
            found[start:end] = [concepts] * (end - start)
            rows.append({**key, "start": start, "end": end, "concepts": concepts})
        expected += found
    if not rows:
        return
    data.draw(st.randoms(use_true_random=False)).shuffle(rows)
    if data.draw(st.booleans()):
        rows = [{**{k: row[k] for k in row if k in ("id", "document")},
                 "spans": [{k: row[k] for k in ("start", "end", "concepts")}]} for row in rows]  # fmt: skip
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        folder = Path(directory)
        patch.setattr(joining, "_IDS", data.draw(st.integers(1, 5)))
        patch.setattr(ids, "_READ", data.draw(st.integers(1, 5)))
        patch.setattr(bulk, "_HOLE_BYTES", data.draw(st.integers(0, 24)))
        source = build(folder / "source", corpus, tracks=True)
        options = AnnotateOptions(track="new")
        annotate(source, [write_rows(folder / f"rows{suffix}", rows)], folder / "out", options)
        assert verify(folder / "out", full=True) == []
        with cl.open_dataset(source) as old, cl.open_dataset(folder / "out") as new:
            assert new.stream_fingerprint == old.stream_fingerprint
            assert new.tokens(0, new.num_tokens).tolist() == [token for tokens in flat for token in tokens]
            assert owners(new, "new") == expected
            assert owners(new, "old") == owners(old, "old")
            assert new.document_id(0) == "d0"
            seen = new.spans("new", 0, new.num_tokens)
            assert len(seen) <= new.tracks["new"].spans_in(new.num_tokens)
            assert new.tracks["new"].max_items == max((len(row) for row in expected if row), default=0)
            annotated = [any(row is not None for row in expected[a:b]) for a, b in pairwise(new.shard_starts)]
        names = {
            f"{k:05d}.new.{kind}" for k, some in enumerate(annotated) if some for kind in ("index", "data", "spans")
        }
        assert {path.name for path in (folder / "out").iterdir()} == {"manifest.json"} | names


def test_over_adopted_files_and_again(tmp_path: Path) -> None:
    """Whole documents, other codecs, paths through two derived datasets in other directories."""
    (tmp_path / "tokens").mkdir()
    np.array([1, 2, 0, 3, 0, 4], np.uint16).tofile(tmp_path / "tokens" / "x.npy")
    adopt([tmp_path / "tokens" / "x.npy"], tmp_path / "a" / "ds", dtype="u2", document_end=0)
    quality = write_rows(tmp_path / "q.jsonl", [{"document": 2, "value": 0.25}, {"document": 0, "value": 0.75}])
    options = AnnotateOptions(track="quality", codec="numpy", parameters={"dtype": "f4"})
    annotate(tmp_path / "a" / "ds", [quality], tmp_path / "b" / "ds", options, roots=[tmp_path])
    sources = write_rows(tmp_path / "s.jsonl", [{"document": 1, "value": {"url": "u", "date": None}}])
    options = AnnotateOptions(track="origin", codec="json")
    annotate(tmp_path / "b" / "ds", [sources], tmp_path / "ds", options, roots=[tmp_path])
    ds = cl.open_dataset(tmp_path / "ds")
    assert ds.tokens(0, 6).tolist() == [1, 2, 0, 3, 0, 4]
    assert owners(ds, "quality") == [[0.75]] * 3 + [None] * 2 + [[0.25]]
    assert owners(ds, "origin") == [None] * 3 + [{"url": "u", "date": None}] * 2 + [None]
    assert verify(tmp_path / "ds", full=True) == []


def test_little_memory(tmp_path: Path) -> None:
    """Too little is an error that leaves nothing; what does not fit goes to files, which are removed."""
    build(tmp_path / "ds", [[[1, 2]]])
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": "d1", "concepts": [7]}])
    with raises(ReadError, "out", "Out of Memory", fix="--sort-memory"):
        annotate(tmp_path / "ds", [rows], tmp_path / "out", AnnotateOptions(track="c", sort_memory=1000))
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


def test_more_ids_than_memory(tmp_path: Path) -> None:
    count = 150_000
    build = cl.writing.create_writer(tmp_path / "ds", cl.writing.BuildOptions(), plan=[0])
    names = [f"d{number}" for number in range(count)]
    with build.shard(0) as writer:
        writer.add_documents(np.ones(count, np.int64), np.arange(count + 1), {}, names)
    cl.writing.finalize(tmp_path / "ds")
    pyarrow.parquet.write_table(pa.table({"id": names[::-1], "value": np.arange(count)}), tmp_path / "rows.parquet")
    options = AnnotateOptions(track="c", codec="numpy", parameters={"dtype": "i8"}, sort_memory=22 << 20)
    annotate(tmp_path / "ds", [tmp_path / "rows.parquet"], tmp_path / "out", options)
    assert owners(cl.open_dataset(tmp_path / "out"), "c") == [[number] for number in range(count)[::-1]]


def test_overlaps(tmp_path: Path) -> None:
    build(tmp_path / "ds", [[[1, 2, 3, 4]]])
    spans = [{"start": 0, "end": 3, "concepts": ["a"]}, {"start": 2, "end": 4, "concepts": ["b", "a"]}]
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": "d0", "spans": spans}])
    with raises(InputError, "rows.jsonl: line 1: document 0", "span [2, 4) over [0, 3)"):
        annotate(tmp_path / "ds", [rows], tmp_path / "out", AnnotateOptions(track="c", vocabulary=["a", "b"]))
    options = AnnotateOptions(track="c", vocabulary=["a", "b"], overlap="union")
    annotate(tmp_path / "ds", [rows], tmp_path / "union", options)
    ds = cl.open_dataset(tmp_path / "union")
    assert owners(ds, "c") == [[0], [0], [0, 1], [0, 1]]
    assert ds.vocabulary("c") == ["a", "b"]
    options = AnnotateOptions(track="c", vocabulary=["a", "b"], overlap="levels")
    annotate(tmp_path / "ds", [rows], tmp_path / "levels", options)
    ds = cl.open_dataset(tmp_path / "levels")
    assert owners(ds, "c") == [[0], [0], [0], None]
    assert owners(ds, "c_level2") == [None, None, [1, 0], [1, 0]]
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": "d0", "concepts": [k]} for k in (1, 2, 0)])
    annotate(tmp_path / "ds", [rows], tmp_path / "order", replace(options, vocabulary=None))  # as they came
    ds = cl.open_dataset(tmp_path / "order")
    assert [owners(ds, name)[0] for name in ("c", "c_level2", "c_level3")] == [[1], [2], [0]]


BAD: list[tuple[Rows, int, str]] = [
    ([{"id": "d0", "concepts": [1]}, {"id": "dx", "concepts": [1]}], 2, "id 'dx'"),
    ([{"document": 4, "concepts": [1]}], 1, "document 4"),
    ([{"document": 0, "id": "d0", "concepts": [1]}], 1, "id 'd0' and document 0"),
    ([{"id": "twice", "concepts": [1]}], 1, "id 'twice', which several documents have"),
    # As many as documents: all ids are read.
    ([*[{"id": "d0", "concepts": [1]}] * 4, {"id": "dx", "concepts": [1]}], 5, "id 'dx'"),
    ([*[{"id": "d1", "concepts": [1]}] * 4, {"id": "twice", "concepts": [1]}], 5, "id 'twice', which several"),
    ([{"id": "d0", "concepts": [1]}, {"document": 4, "concepts": [1]}], 2, "document 4"),
    ([{"id": "d0", "start": 1, "end": 4, "concepts": [1]}], 1, "[1, 4)"),
    ([{"id": "d0", "start": 0, "concepts": [1]}], 1, "[0, None)"),
    ([{"id": "d0", "spans": {}, "concepts": [1]}], 1, "spans together with"),
    ([{"id": "d0", "concepts": ["x"]}], 1, "unknown concept 'x'"),
    ([{"id": "d0", "concepts": 3}], 1, "type int64"),
    ([{"id": "d0"}], 1, "no 'concepts'"),
    ([{"id": "d0", "concepts": [1], "score": 2}], 1, "column 'score'"),
    ([], 0, "no annotation"),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents d0 of three tokens, d1, and two of one id."""
    documents = ([1, 2, 3], "d0"), ([4], "d1"), ([5], "twice"), ([6], "twice")
    return written(tmp_path_factory.mktemp("small") / "ds", [(tokens, {}, name) for tokens, name in documents])


@pytest.mark.parametrize(("rows", "line", "found"), BAD)
def test_bad_annotations(small: Path, tmp_path: Path, rows: Rows, line: int, found: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows)
    where = f"rows.jsonl: line {line}" if line else "rows.jsonl"
    with raises(InputError, where, found):
        annotate(small, [path], tmp_path / "out", AnnotateOptions(track="c"))
    assert list(tmp_path.iterdir()) == [path]


def test_bad_arguments(tmp_path: Path) -> None:
    build(tmp_path / "ds", [[[1, 2]]], ids=False, tracks=True)
    rows = write_rows(tmp_path / "rows.jsonl", [{"document": 0, "start": 0, "end": 1, "concepts": [1]}])
    bad: list[tuple[dict[str, Any], str, str]] = [
        ({"track": "old"}, "ds", "a track, field or column 'old'"),
        ({"track": "Bad Name"}, "", "the name 'Bad Name'"),
        ({"span_unit": "words"}, "span_unit", "'words'"),
        ({"span_unit": "token", "tokenizer": BytesTokenizer()}, "span_unit", "tokens with a tokenizer"),
        ({"span_unit": "character"}, "ds", "no tokenizer with the dataset"),
        ({"align": "middle"}, "align", "'middle'"),
        ({"overlap": "merge"}, "overlap", "'merge'"),
        ({"codec": "json", "overlap": "union"}, "overlap", "union with codec json"),
    ]
    for options, path, found in bad:
        with raises(ConfigError, path, found):
            annotate(tmp_path / "ds", [rows], tmp_path / "out", AnnotateOptions(**{"track": "c", **options}))
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": "d0", "concepts": [1]}])
    with raises(InputError, "rows.jsonl: line 1", "id 'd0'"):
        annotate(tmp_path / "ds", [rows], tmp_path / "out", AnnotateOptions(track="c"))
    (tmp_path / "rows.jsonl").write_text('{"document": 0, "concepts": [1]}\n{"document": 0,\n')
    with raises(InputError, "rows.jsonl: line 2", "broken JSON"):
        annotate(tmp_path / "ds", [rows], tmp_path / "out", AnnotateOptions(track="c"))
    (tmp_path / "rows.jsonl").write_text('{"document": 0, "concepts": [1]}\n')
    with raises(ConfigError, found="files there"):
        annotate(tmp_path / "ds", [rows], tmp_path / "ds", AnnotateOptions(track="c"))


def test_a_named_column_that_is_not_there(tmp_path: Path) -> None:
    """Not replaced by one of the usual name, and not by nothing: without offsets a row means the whole document."""
    ds = build(tmp_path / "ds", [[[1, 2, 3], [4, 5]]])

    def new(rows: Rows, columns: dict[str, str], **more: Any) -> list[Any]:
        options = AnnotateOptions(track="topic", codec="json", column=columns, span_unit="token", **more)
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        annotate(ds, [write_rows(tmp_path / "rows.jsonl", rows)], out, options)
        return owners(cl.open_dataset(out), "topic")

    with raises(InputError, "rows.jsonl", "column 'id'", "'doc' alone"):
        new([{"id": "d0", "value": 1}], {"id": "doc"})
    with raises(InputError, "rows.jsonl", "no column 'begin' in any row"):
        new([{"id": "d0", "value": 1}, {"id": "d1", "value": 2}], {"start": "begin", "end": "stop"})
    rows = [{"id": "d1", "doc": "d0", "value": 1}]
    with raises(InputError, "rows.jsonl", "column 'id'"):
        new(rows, {"id": "doc"})
    assert new(rows, {"id": "doc"}, ignore_column=["id"]) == [1, 1, 1, None, None]
    with raises(ConfigError, "columns", "'begin'"):
        new(rows, {"begin": "start"})
