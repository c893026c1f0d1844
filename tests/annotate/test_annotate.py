"""New tracks over existing tokens, against a brute-force account of which token belongs to which record."""

import gzip
import json
import tempfile
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
from conceptloader.errors import InputError, ReadError
from conceptloader.format.read import bulk, ids
from conceptloader.format.read.bulk import records_of
from conceptloader.format.read.values import decode_all
from conceptloader.format.tools.verify import verify
from conceptloader.ingest.annotate import join as joining
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.database import database, load
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
        records = decode_all(ds.codec(level), records_of(ds.files, shard, level, numbers), "")
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
