"""Inputs that change while they are read, or between two runs of a build: an error that names the file."""

import os
import re
import shutil

import pyarrow as pa
import pyarrow.parquet
import pytest

from conceptloader.cli import main
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.annotate import rows
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.build.builder import build_dataset
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.records.inputs import find_sources
from tests.corpora.records import write_rows

DOCUMENTS = 6000


def write(path, word="word"):
    """About 600 kB, so that the sampled pieces are not all of it."""
    records = [{"id": f"{i:06}", "text": f"{word} {i:06} " + "x" * 60} for i in range(DOCUMENTS)]
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pylist(records), path, row_group_size=1000, compression="none")
    else:
        write_rows(path, records)


def build(source, out, on_progress=lambda: None, **more):
    sources = find_sources([source])
    options = Options(tokenizer="bytes", shard_input_bytes=200_000)
    return build_dataset(sources, out, options, watch=lambda total, done: lambda progress: on_progress(), **more)


def truncate(path):
    lines = path.read_bytes().splitlines(keepends=True)
    os.truncate(path, sum(map(len, lines[: len(lines) // 2])))


def edit(path):
    with open(path, "r+b") as file:
        file.write(file.read().replace(b"word", b"WORD"))  # appended: read and write share the position
    os.truncate(path, path.stat().st_size // 2)


def replace(path):
    """Another file of the same size and time."""
    other = path.with_name("other" + path.suffix)
    write(other, "WORD")
    shutil.copystat(path, other)
    os.rename(other, path)


@pytest.mark.parametrize(
    ("suffix", "change"), [(".jsonl", truncate), (".jsonl", edit), (".jsonl", replace), (".parquet", replace)]
)
def test_while_a_build_runs(tmp_path, suffix, change):
    source, out = tmp_path / f"in{suffix}", tmp_path / "out"
    write(source)
    todo = [change]

    def once():
        while todo:
            todo.pop()(source)

    with pytest.raises(InputError, match=rf"{source}: found it changed while it was read"):
        build(source, out, once)
    assert not (out / "manifest.json").exists()
    assert not list(out.glob("*.shard.json")), "the shard that was read meanwhile is not kept"


def test_between_two_runs_of_a_build(tmp_path, capsys):
    """Edited, also where the samples do not look; one more."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    write(source)
    good = source.read_bytes()
    data = good + b"broken\n"
    source.write_bytes(data)
    before = find_sources([source])[0]
    with pytest.raises(InputError, match="3 of 4 shards are finished and kept"):
        build(source, out)
    kept = {path.name: path.read_bytes() for path in out.iterdir()}
    source.write_bytes(good)
    with pytest.raises(ConfigError, match=r"other inputs.*in\.jsonl"):
        build(source, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == kept
    edited = data.replace(b"word 000300", b"WORD 000300")
    source.write_bytes(edited)
    assert find_sources([source])[0].sample == before.sample, "this test is to change what is not sampled"
    with pytest.raises(ConfigError, match=rf"{source}: found a modification time of"):
        build(source, out, on_bad=lambda *_: None)
    source.write_bytes(data)
    os.utime(source, ns=(before.stamp[0], before.stamp[0]))
    assert build(source, out, on_bad=lambda *_: None).documents == DOCUMENTS
    source.write_bytes(edited)
    with pytest.raises(ConfigError, match=rf"{source}: found a modification time of"):  # of a complete dataset
        build(source, out, on_bad=lambda *_: None)
    (tmp_path / "more.jsonl").write_text('{"text": "a"}\n')
    assert main(["build", str(tmp_path / "more.jsonl"), "--out", str(out), "--tokenizer", "bytes"]) == 2
    assert re.search(r"other inputs.*more\.jsonl", capsys.readouterr().err)


def test_while_annotations_are_read(tmp_path, monkeypatch):
    source, notes = tmp_path / "in.jsonl", tmp_path / "notes.jsonl"
    write(source)
    build(source, tmp_path / "ds")
    notes.write_text("".join(f'{{"document": {i}, "start": 0, "end": 1, "concepts": [1]}}\n' for i in range(100)))
    real = rows.read_blocks

    def changing(*arguments):
        for block in real(*arguments):
            truncate(notes)
            yield block

    monkeypatch.setattr(rows, "read_blocks", changing)
    with pytest.raises(InputError, match=rf"{notes}: found it changed while it was read"):
        annotate(tmp_path / "ds", [notes], tmp_path / "out", track="new")
    assert not (tmp_path / "out").exists()
