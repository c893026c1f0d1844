"""What --dry-run says is what a build takes."""

import gzip
import json
import random
import shutil
from collections import namedtuple

import pytest
import zstandard

import conceptloader as cl
from conceptloader.cli import main
from tests.corpora.records import write_rows

Usage = namedtuple("Usage", "total used free")


def rows(count):
    rng = random.Random(0)
    found = []
    for number in range(count):
        numbers = [str(rng.randrange(10**9)) + " 日本" for _ in range(number % 50)]
        spans = [{"start": 3 * k, "end": 3 * k + 2, "concepts": ["x"]} for k in range(len(numbers))]
        found.append({"id": f"d{number}", "text": " ".join(numbers), "spans": spans})
    return found


def dry(capsys, *inputs, out, code=0):
    names = out.with_name("names.txt")
    names.write_text("x\n")
    words = ["--tokenizer", "bytes", "--vocabulary", str(names), "--out", str(out), "--dry-run", "--json"]
    capsys.readouterr()
    assert main(["build", *map(str, inputs), *words]) == code
    assert not out.exists()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
@pytest.mark.parametrize("count", [5, 6_000])
def test_what_a_dry_run_says_is_what_there_is(kind, count, tmp_path, capsys):
    path = tmp_path / f"in.{kind}"
    if kind == "parquet":
        write_rows(path, rows(count))
    else:
        data = "".join(json.dumps(row) + "\n" for row in rows(count)).encode()
        pack = {"gz": gzip.compress, "zst": zstandard.ZstdCompressor().compress}.get(kind.partition(".")[2], bytes)
        path.write_bytes(pack(data))
    said = dry(capsys, path, out=tmp_path / "out")
    done = cl.build(path, tmp_path / "out", tokenizer="bytes", vocabulary={"concepts": ["x"]})
    written = sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    assert said["documents"] == pytest.approx(done.documents, rel=0.1)
    assert said["tokens"] == pytest.approx(done.tokens, rel=0.1)
    assert said["bytes"] == pytest.approx(written, rel=0.25, abs=20_000)
    assert said["enough"]


def test_a_disk_without_room_is_said(tmp_path, capsys, monkeypatch):
    path = write_rows(tmp_path / "in.jsonl", rows(500))
    need = dry(capsys, path, out=tmp_path / "out")["bytes"]
    for free in (need - 1, need):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: Usage(1 << 40, 0, free))
        assert dry(capsys, path, out=tmp_path / "other", code=int(free < need))["enough"] == (free >= need)
