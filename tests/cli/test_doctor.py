"""`conceptloader doctor`: what it reads, what it says, its exit codes. How fast it is, is nobody's promise."""

import json
import os

import fsspec
import pytest

from conceptloader.cli import main
from conceptloader.testing import random_documents, write_dataset

Capture = pytest.CaptureFixture[str]
BRIEF = ("--seconds", "0.1")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A stream with tracks."""
    path = tmp_path_factory.mktemp("data")
    write_dataset(path / "stream", random_documents(200, tracks={"concepts": 20, "quality": 3}), shards=3)
    return path


def configured(file, dataset, more):
    file.write_text(f"seq_len: 32\ndatasets: {{data: {{path: '{dataset}'}}}}\n{more}")
    return file


def bench(capsys, *arguments, code=0):
    assert main(["doctor", *map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_cold_reads_every_window_once(data, tmp_path, capsys, monkeypatch):
    dropped = set()

    def fadvise(descriptor, offset, size, advice):
        if advice == os.POSIX_FADV_DONTNEED:
            assert (offset, size) == (0, 0)
            dropped.add(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "posix_fadvise", fadvise)
    quality = configured(tmp_path / "run.yaml", data / "stream", "tracks: {quality: {}}\n")
    found = bench(capsys, quality, "--seconds", 60, "--cold", "--batch-size", 3)
    total, last = found["samples"]["data"], found["batches"]
    assert found["single"]["samples"] == total // 2
    assert 0 <= found["single"]["samples"] + last["samples"] - total < 3  # the last batch is a whole one
    assert found["single"]["repeated"] == 0
    assert last["repeated"] < 3
    parts = ("stream.bin", "documents.bin", "quality.index", "quality.data", "quality.spans")
    assert {f"{shard:05}.{part}" for shard in range(3) for part in parts} >= dropped
    assert {f"{shard:05}.{part}" for shard in range(3) for part in parts[:2]} <= dropped
    assert any("quality" in name for name in dropped)
    assert main(["doctor", str(quality), "--cold"]) == 0
    assert "when all of its windows had been read" in capsys.readouterr().out


def test_an_object_store(data, tmp_path, capsys):
    fsspec.filesystem("memory").put(str(data / "stream"), "/bench/stream", recursive=True)
    config = configured(tmp_path / "run.yaml", "memory://bench/stream", "")
    found = bench(capsys, config, *BRIEF)
    assert found["unverified"] == ["data"]
    assert found["batches"]["from"] == "unknown"
    assert found["batches"]["tokens_per_second"] > 0
    assert main(["doctor", str(config), *BRIEF, "--cold"]) == 2
    assert "--cold: found a dataset in an object store" in capsys.readouterr().err
