"""CSV, Arrow files of saved datasets, and repositories of the hub in its cache: the datasets that jsonl gives."""

import csv
import datetime
import decimal
import errno
import gzip
import json
import math
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.format.write.build import check_alone
from conceptloader.ingest.build.builder import IngestOptions, build_dataset
from conceptloader.ingest.hub import HubName
from conceptloader.ingest.records.detect import detect_columns
from conceptloader.ingest.records.inputs import find_sources
from conceptloader.ingest.records.tokenizer import load_tokenizer
from conceptloader.testing import random_documents, write_dataset
from tests.corpora import tokenizers as corpora
from tests.corpora.records import content as all_files
from tests.corpora.records import write_rows
from tests.raises import raises

ROWS = [
    {"id": "a1", "text": 'Größe, "zählt"\r\nimmer\n', "source": "x"},
    {"id": "007", "text": "", "source": ""},
    {"id": "", "text": "plain", "source": "NULL"},
    {"id": "b", "text": "last\n\n", "source": "1e5"},
]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "\n".join(
        [",".join(rows[0]), *(",".join('"' + v.replace('"', '""') + '"' for v in row.values()) for row in rows)]
    )
    if path.name.startswith("t."):
        text = text.replace('","', '"\t"').replace(",".join(rows[0]), "\t".join(rows[0]))
    data = text.encode()
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(data))
    return path


def build(source: str | Path, out: Path, *more: str) -> int:
    return main(["build", str(source), "--out", str(out), "--tokenizer", "bytes", "--workers", "1", "--quiet", *more])


def content(path: Path) -> dict[str, Any]:
    """Data files; what says where they are from differs."""
    files = {file.name: file.read_bytes() for file in path.iterdir() if file.suffix not in (".json", ".tmp")}
    return {name: data for name, data in files.items() if not name.startswith(".")}


@pytest.fixture
def wanted(tmp_path: Path) -> dict[str, Any]:
    source = tmp_path / "corpus.jsonl"
    write_rows(source, ROWS)
    assert build(source, tmp_path / "wanted", "--metadata-column", "source") == 0
    return content(tmp_path / "wanted")


def test_csv(tmp_path: Path, wanted: dict[str, Any]) -> None:
    for name in ("c.csv", "c.csv.gz", "c.tsv.csv", "t.tsv", "t.csv.tsv", "t.tsv.zst"):
        source, out = write_csv(tmp_path / name, ROWS), tmp_path / f"out-{name}"
        assert build(source, out, "--metadata-column", "source", "--shard-input-bytes", "20") == 0
        assert content(out) == wanted, name
        assert cl.verify(out, full=True) == []


def test_metadata_of_the_types_of_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"day": datetime.date(2026, 1, 2), "price": decimal.Decimal("1.50"), "score": math.nan, "most": math.inf}
    rows = pa.Table.from_pylist([{"text": "a", "big": 2**63 - 1, "tags": [{"x": [math.nan, 0.1]}], **given}])
    pq.write_table(rows, tmp_path / "in.parquet")
    more = [word for name in rows.column_names[1:] for word in ("--metadata-column", name)]
    assert build(tmp_path / "in.parquet", tmp_path / "ds", *more) == 0
    wanted = {"day": "2026-01-02", "price": "1.50", "score": None, "most": None}
    found = cl.open_dataset(tmp_path / "ds").documents()[0]["metadata"].decode()
    assert found == [{"big": 2**63 - 1, "tags": [{"x": [None, 0.1]}], **wanted}]
    pq.write_table(pa.Table.from_pylist([{"text": "a", "raw": b"x"}]), tmp_path / "raw.parquet")
    assert build(tmp_path / "raw.parquet", tmp_path / "no", "--metadata-column", "raw") == 1
    assert "raw.parquet: row 0: json record: found {'raw': b'x'}" in capsys.readouterr().err


def test_many_rows_of_csv_in_order(tmp_path: Path) -> None:
    rows = [{"id": f"d{i}", "text": f"{i}\n" * (i % 5)} for i in range(3000)]
    assert build(write_csv(tmp_path / "c.csv", rows), tmp_path / "out") == 0
    ds = cl.open_dataset(tmp_path / "out")
    assert [ds.document_id(i) for i in range(ds.num_documents)] == [row["id"] for row in rows]
    assert ds.num_tokens == sum(len(row["text"]) + 1 for row in rows)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"id,text\na,one\nb,two,three\nc,four\n", "line 3: found 3 values, expected 2, one for each column"),
        (b"id,text\na,one\nb,\xff\nc,four\n", "line 3: found bytes that are not UTF-8"),
        (b'id,text\na,one\nb,"two\nthree\n', "line 3: found a row of broken CSV"),
        (b'id,text\na,one\nb,"two"x\n', "line 3: found a row of broken CSV"),
        (b"id;text\na;one\n", "line 1: found columns 'id;text', expected commas between values"),
        (b"id\ttext\na\tone\n", "line 1: found columns 'id\\ttext', expected commas between values"),
        (b"id,text,caf\xe9\na,one,two\n", "line 1: found columns 'id, text, caf\\udce9', expected names that can be"),
        ("id,text\na,one\n".encode("utf-16"), "expected names that can be printed, in UTF"),
        (b"id,text,id\na,one,b\n", "line 1: found columns 'id, text, id', expected each name once"),
        (b"id,tekst,more\na,one,b\n", "expected 'text'"),
        (b"id,text,more,other\na,one,b,c\n", "found columns 'more', 'other', expected some of text, id"),
    ],
)
def test_bad_csv(tmp_path: Path, text: bytes, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "c.csv"
    source.write_bytes(text)
    assert build(source, tmp_path / "out") == 1
    assert problem in capsys.readouterr().err
    if "found 3 values" in problem or "UTF-8" in problem:
        assert build(source, tmp_path / "out", "--bad-records", str(tmp_path / "bad")) == 0
        assert cl.open_dataset(tmp_path / "out").num_documents == 2
        assert problem in json.loads((tmp_path / "bad").read_text())["where"] + ": " + problem.partition(": ")[2]
    assert not (tmp_path / "out" / "manifest.json").exists() or (tmp_path / "bad").exists()


def test_a_value_of_many_lines_over_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After blank lines and a byte order mark in front of the names of columns."""
    (tmp_path / "c.csv").write_bytes(b'\xef\xbb\xbf\n\nid,text\na,one\nb,"' + b"word\n" * 100 + b'"\n')
    assert build(tmp_path / "c.csv", tmp_path / "out", "--max-line-bytes", "100") == 1
    told = capsys.readouterr().err
    assert "line 5: found a value of more than 100 characters" in told
    assert "--max-line-bytes" in told
    assert build(tmp_path / "c.csv", tmp_path / "out", "--max-line-bytes", "1000") == 0
    assert cl.open_dataset(tmp_path / "out").document_id(0) == "a"


@pytest.mark.parametrize("name", ["twice.arrow", "twice.parquet"])
def test_a_column_that_is_there_twice(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    if name.endswith(".arrow"):
        with pa.OSFile(str(tmp_path / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
    else:
        pq.write_table(table, tmp_path / name)
    assert build(tmp_path / name, tmp_path / "out") == 1
    assert f"{name}: found columns text, text, expected each name once; rename one" in capsys.readouterr().err


def test_annotations_in_csv(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "c.csv", [{"id": "1", "text": "one two"}, {"id": "2", "text": "three"}])
    assert build(source, tmp_path / "text") == 0
    with open(tmp_path / "notes.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerows(
            [["doc", "from", "to", "label", "sure"], [2, 0, 5, "b", 0.5], [1, 4, 7, "a", 1], [1, 0, 3, "b", 0]]
        )
    (tmp_path / "names.txt").write_text("a\nb\n")
    columns = [f"--column={pair}" for pair in ("id=doc", "start=from", "end=to", "concepts=label", "scores=sure")]
    command = ["annotate", str(tmp_path / "text"), str(tmp_path / "notes.csv"), "--out", str(tmp_path / "out")]
    command += columns
    more = ["--track", "t", "--vocabulary", str(tmp_path / "names.txt"), "--span-unit", "character"]
    assert main([*command, *more, "--parameters", '{"scores": "f4"}']) == 0
    ds = cl.open_dataset(tmp_path / "out")
    spans = ds.spans("t", 0, ds.num_tokens)
    assert (spans.start.tolist(), spans.end.tolist()) == ([0, 4, 8], [3, 7, 13])
    assert (spans.values.tolist(), spans.scores.tolist()) == ([1, 0, 1], [0.0, 1.0, 0.5])
    command = ["annotate", str(tmp_path / "text"), str(tmp_path / "notes.csv"), "--out", str(tmp_path / "quality")]
    command += ["--track", "q", "--codec", "numpy", "--parameters", '{"dtype": "f4"}']
    for wrong in ("nothing", "1e400", "NaN", "1e39"):
        (tmp_path / "notes.csv").write_text(f"id,value\n1,0.25\n2,{wrong}\n")
        assert main(command) == 1
    (tmp_path / "notes.csv").write_text("id,value\n1,0.25\n2,7\n")
    assert main(command) == 0
    ds = cl.open_dataset(tmp_path / "quality")
    assert [value.tolist() for value in ds.spans("q", 0, ds.num_tokens).decode()] == [[0.25], [7.0]]


def test_the_hub_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """From the hub's cache, as the library lays it out; offline nothing else is asked."""
    for kind, name in (("datasets", "some--corpus"), ("models", "some--model")):
        home = tmp_path / "hub" / f"{kind}--{name}"
        (home / "snapshots" / "abc" / "data").mkdir(parents=True)
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text("abc")
    write_csv(tmp_path / "hub" / "datasets--some--corpus" / "snapshots" / "abc" / "data" / "c.csv", ROWS)
    model = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
    corpora.byte_level().save(str(model / "tokenizer.json"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    out = ["--out", str(tmp_path / "out"), "--metadata-column", "source", "--workers", "1", "--quiet"]
    assert main(["build", "hub:some/corpus/data", "--tokenizer", "hub:some/model", *out]) == 0
    made = cl.open_dataset(tmp_path / "out")
    assert made.num_documents == 4
    assert made.manifest.tokenizer is not None
    assert made.manifest.tokenizer.vocab_size <= 400
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    with patch.object(HubName, "fetch", autospec=True, side_effect=HubName.fetch) as fetch:
        words = [str(tmp_path / "chat.jsonl"), "--tokenizer", "hub:some/model"]
        assert main(["build", *words, "--chat", "--out", str(tmp_path / "chat"), "--quiet"]) == 1  # no answer
        assert main(["init", *words, "--out", str(tmp_path / "r.yaml")]) == 0
    assert fetch.call_count == 1
    assert "tokenizer: hub:some/model" in (tmp_path / "r.yaml").read_text()
    capsys.readouterr()
    assert build("hub:some/other", tmp_path / "none") == 1
    assert "hub:some/other: found nothing that can be fetched (" in capsys.readouterr().err


def test_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_csv(tmp_path / "c.csv", ROWS)
    other = write_csv(tmp_path / "d.csv", [{"id": "z", "text": "other"}])
    out = tmp_path / "out"
    assert build(other, out, "--overwrite") == 0  # nothing is there yet
    assert build(first, out, "--metadata-column", "source") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert build(first, out, "--overwrite") == 1  # a column that nobody named: found before anything is removed
    assert cl.open_dataset(out).num_documents == 1
    assert build(first, out, "--metadata-column", "source", "--overwrite") == 0
    assert cl.open_dataset(out).num_documents == 4
    assert cl.verify(out, full=True) == []
    inside = write_csv(out / "c.csv", ROWS)
    assert build(inside, out, "--metadata-column", "source", "--overwrite") == 2
    os.unlink(inside)
    (out / "notes.txt").write_text("mine")
    (out / "notes").symlink_to(tmp_path)
    (out / "empty").mkdir()
    assert build(other, out, "--overwrite") == 2
    assert "found 3 files or folders that are no dataset's (" in capsys.readouterr().err
    assert cl.verify(out, full=True) == []
    assert build(other, other, "--overwrite") == 2
    assert "found a file, expected a directory or nothing" in capsys.readouterr().err


def test_a_mount_point_cannot_be_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can rename it: that is said before hours of building, not after."""
    source, out = write_csv(tmp_path / "c.csv", [{"id": "z", "text": "other"}]), tmp_path / "out"
    cl.build(source, out, tokenizer="bytes")
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(out))
    with raises(ConfigError, f"{out}: overwrite", "a mount point", fix="nothing was removed"):
        cl.build(source, out, tokenizer="bytes", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["c.csv", "out"]


def test_one_of_several_tasks(tmp_path: Path) -> None:
    """Overwriting would remove what others have written; of two tasks, 1 and 2, as one who counts from 1 calls them,
    nobody would write the first shards."""
    inputs = find_sources([write_csv(tmp_path / "c.csv", ROWS)])
    columns = detect_columns(inputs, ignored=["source"])
    options = IngestOptions(columns=columns, tokenizer=load_tokenizer("bytes"), shard_input_bytes=20)
    for wrong in ((2, 2), (-1, 2), (0, 0)):
        with raises(ConfigError, "task", f"{wrong[0]} of {wrong[1]}"):
            build_dataset(inputs, tmp_path / "out", options, task=wrong)
    assert os.listdir(tmp_path) == ["c.csv"]
    build_dataset(inputs, tmp_path / "out", options, task=(0, 2))
    before = all_files(tmp_path / "out")
    for number in (0, 1):
        with raises(ConfigError, "overwrite", f"task {number} of 2", fix="nothing was removed"):
            build_dataset(inputs, tmp_path / "out", options, task=(number, 2), overwrite=True)
    assert all_files(tmp_path / "out") == before


def test_overwrite_puts_the_old_dataset_back_if_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rename, failed = tmp_path / "out", os.rename, list[str]()
    assert build(write_csv(tmp_path / "c.csv", ROWS), out, "--metadata-column", "source") == 0

    def fails(source: str, target: str) -> None:
        if target == str(out) and not failed:
            failed.append(source)
            raise PermissionError(errno.EPERM, "no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)
    assert build(write_csv(tmp_path / "d.csv", [{"id": "z", "text": "other"}]), out, "--overwrite") == 1
    assert failed
    assert cl.open_dataset(out).num_documents == len(ROWS)
    assert cl.verify(out, full=True) == []


def test_overwrite_leaves_what_is_no_dataset_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_csv(tmp_path / "c.csv", ROWS)
    for number, (name, text) in enumerate({"thesis.txt": "years", "manifest.json": '{"name": "page"}'}.items()):
        mine = tmp_path / f"mine{number}"
        mine.mkdir()
        (mine / name).write_text(text)
        (mine / "00000.stream").write_text("mine")
        assert build(source, mine, "--metadata-column", "source", "--overwrite") in (1, 2)
        assert "nothing was removed" in capsys.readouterr().err or number == 1
        assert sorted(os.listdir(mine)) == sorted(["00000.stream", name])
    data = tmp_path / "data"
    data.mkdir()
    inside = write_csv(data / "00000.csv", ROWS)
    (tmp_path / "link").symlink_to(data)
    assert build(inside, tmp_path / "link", "--metadata-column", "source", "--overwrite") == 2
    assert "found the input" in capsys.readouterr().err
    assert inside.exists()


def test_overwrite_leaves_what_has_almost_the_name_of_a_datasets_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_dataset(out, random_documents(30, seed=1))
    assert main(["index", str(out), "--quiet"]) == 0
    for name in ("rows", "index.json", "00000.csv", "x.concept_index", "concepts.concept_index/00000.csv"):
        (out / name).symlink_to(tmp_path)
        with raises(ConfigError, found=name):
            check_alone(str(out), ())
        assert cl.verify(out, full=True) == []
        assert (out / "concepts.concept_index" / "index.json").exists()
        (out / name).unlink()
    # Of an index that was interrupted:
    for left in ("00001.concepts.parquet", ".00001.parquet.0123456789abcdef.tmp", "00001.json"):
        (out / "concepts.concept_index" / left).touch()
    (out / "empty.concept_index").mkdir()
    check_alone(str(out), ())


def test_overwrite_of_all_that_a_dataset_may_hold(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_dataset(out, random_documents(30, seed=1), shards=2)
    assert main(["index", str(out), "--quiet"]) == 0
    (out / "concepts.concept_index" / ".build.lock.tmp").touch()  # of a process that was killed
    assert main(["subset", str(out), "--where", "tokens > 0", "--out", str(tmp_path / "view"), "--quiet"]) == 0
    for directory in (out, tmp_path / "view"):
        assert build(write_csv(tmp_path / "c.csv", ROWS), directory, "--metadata-column", "source", "--overwrite") == 0
        assert cl.open_dataset(directory).num_documents == 4
        assert not list(directory.glob("*.concept_index"))
