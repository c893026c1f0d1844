"""`conceptloader doctor`: what it reads, what it says, its exit codes. How fast it is, is nobody's promise."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from conceptloader.cli import main
from conceptloader.testing import random_documents, write_dataset

Capture = pytest.CaptureFixture[str]
BRIEF = ("--seconds", "0.1")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two streams with tracks, and one dataset of documents; a configuration of each."""
    path = tmp_path_factory.mktemp("data")
    documents = random_documents(200, tracks={"concepts": 20, "quality": 3})
    write_dataset(path / "stream", documents, shards=3)
    write_dataset(path / "other", random_documents(50, seed=1, prefix="other"))
    write_dataset(path / "documents", documents, mode="document")
    configured(path / "stream.yaml", path / "stream", "tracks: {concepts: {}, quality: {}}\n")
    configured(path / "documents.yaml", path / "documents", "")
    return path


def configured(file: Path, dataset: object, more: str) -> Path:
    file.write_text(f"seq_len: 32\ndatasets: {{data: {{path: '{dataset}'}}}}\n{more}")
    return file


def bench(capsys: Capture, *arguments: object, code: int = 0) -> Any:
    assert main(["doctor", *map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_rare_track_is_not_bad(tmp_path: Path, capsys: Capture) -> None:
    """None of its few spans is in the samples that are looked at; of a track without spans nothing ever will be."""
    documents = random_documents(3000, tracks={"rare": 3, "empty": 3})
    documents = [
        dataclasses.replace(one, spans={"rare": one.spans["rare"] if k == 17 else [], "empty": []})
        for k, one in enumerate(documents)
    ]
    write_dataset(tmp_path / "data", documents)
    config = configured(tmp_path / "run.yaml", tmp_path / "data", "tracks: {rare: {}, empty: {}}\n")
    found = bench(capsys, config, *BRIEF, code=1)
    tracks = {one["text"].split(":")[0]: one for one in found["findings"] if one["name"] == "concepts"}
    assert "rare: 0 of 3" in tracks["rare"]["text"]
    assert (tracks["rare"]["good"], tracks["empty"]["good"]) == (True, False)


def test_a_stream_with_concepts(data: Path, capsys: Capture) -> None:
    found = bench(capsys, data / "stream.yaml", *BRIEF, "--threads", 3, "--batch-size", 5)
    assert (found["mode"], found["seq_len"]) == ("stream-with-metadata", 32)
    assert found["tracks"] == ["concepts", "quality"]
    assert (found["threads"], found["prefetch"], found["needed"]) == (3, 4, None)
    for name, threads, batch in (("single", 1, 1), ("batches", 3, 5)):
        one = found[name]
        assert (one["threads"], one["batch"]) == (threads, batch)
        assert one["samples"] >= batch
        assert one["samples"] % batch == 0
        assert one["tokens_per_second"] == pytest.approx(32 * one["samples"] / one["seconds"])
        assert one["tokens_per_second_per_thread"] == pytest.approx(one["tokens_per_second"] / threads)
        assert 0 < one["p50_ms"] <= one["p99_ms"]
        assert one["bytes_asked"] >= one["samples"] * 33 * 2  # tokens of two bytes
        assert one["from"] in ("page cache", "both", "storage")
    total = found["samples"]["data"]
    both = found["single"]["samples"] + found["batches"]["samples"]
    assert found["single"]["repeated"] + found["batches"]["repeated"] == max(0, both - total)


def test_documents(data: Path, capsys: Capture) -> None:
    found = bench(capsys, data / "documents.yaml", *BRIEF, code=1)  # most tokens are in no sample
    assert found["mode"] == "document"
    assert found["samples"] == {"data": 200}
    assert main(["doctor", str(data / "documents.yaml"), *BRIEF]) == 1
    assert "padding of short documents is counted" in capsys.readouterr().out


def test_a_configuration(data: Path, tmp_path: Path, capsys: Capture) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        f"seq_len: 48\ndatasets:\n  a: {{path: {data}/stream, weight: 1}}\n  b: {{path: {data}/other, weight: 3}}\n"
        "tracks: {quality: {layout: ragged}}\nloader: {num_threads: 8, prefetch_batches: 3}\n"
    )
    found = bench(capsys, config, "--seconds", "0.1")
    assert (found["seq_len"], found["tracks"], found["threads"], found["prefetch"]) == (48, ["quality"], 3, 3)
    assert set(found["samples"]) == {"a", "b"}
    assert bench(capsys, config, *BRIEF, "--threads", 8)["prefetch"] == 8
    both = f"{{a: {{path: {data}/stream}}, b: {{path: {data}/other}}}}"
    config.write_text(f"order: sequential\ndatasets: {both}\nloader: {{prefetch_batches: 0}}\n")
    found = bench(capsys, config, *BRIEF, "--seq-len", 32)
    assert (found["tracks"], found["threads"], found["prefetch"]) == ([], 1, 0)
    assert found["batches"]["repeated"] > 0, "a finite order would have ended"


def test_cold_reads_every_window_once(
    data: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: set[str] = set()

    def fadvise(descriptor: int, offset: int, size: int, advice: int) -> None:
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


def test_an_object_store(data: Path, tmp_path: Path, capsys: Capture) -> None:
    fsspec.filesystem("memory").put(str(data / "stream"), "/bench/stream", recursive=True)
    config = configured(tmp_path / "run.yaml", "memory://bench/stream", "")
    found = bench(capsys, config, *BRIEF)
    assert found["unverified"] == ["data"]
    assert found["batches"]["from"] == "unknown"
    assert found["batches"]["tokens_per_second"] > 0
    assert main(["doctor", str(config), *BRIEF, "--cold"]) == 2
    assert "--cold: found a dataset in an object store" in capsys.readouterr().err
