"""What `conceptloader doctor` says of a configuration's samples, beside what the loader gives; and what it reads. How
fast it is, is nobody's promise."""

import json
import os

import fsspec
import numpy as np
import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.records import write_rows


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """web: documents of some sizes. stream: with two tracks, in three shards."""
    path = tmp_path_factory.mktemp("data")
    write_rows(path / "web.jsonl", [{"id": f"web{k}", "text": "Red paint. " * (4 + k % 5)} for k in range(40)])
    cl.build(path / "web.jsonl", path / "web", tokenizer="bytes")
    write_dataset(path / "stream", random_documents(200, tracks={"concepts": 20, "quality": 3}), shards=3)
    return path


@pytest.fixture
def doctor(tmp_path, capsys):
    """Runs it for a configuration of one dataset."""

    def run(path, *words, code=0, **config):
        given = {"seq_len": 32, "datasets": {"web": {"path": str(path)}}, **config}
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(given))
        capsys.readouterr()
        assert main(["doctor", str(tmp_path / "run.yaml"), "--seconds", "0.05", "--json", *words]) == code
        found = json.loads(capsys.readouterr().out)
        return found | {one["name"]: one["text"] for one in found["findings"]}

    return run


def test_what_it_says_of_the_loss_is_what_the_loader_gives(data, tmp_path, doctor):
    found = doctor(data / "web", "--samples", "70", exclude=[{"dataset": "web", "tokens": [0, 600]}])
    drawn = np.random.default_rng(0).integers(0, 70, 256)
    dataset = cl.SampleDataset(tmp_path / "run.yaml", num_samples=70)
    share = 1 - np.mean([dataset[int(k)]["loss_mask"].numpy() for k in drawn])
    assert found["loss"] == f"labels without a loss in 256 samples: web {share:.1%}"
    assert 0 < share < 0.5


def test_what_is_excluded_is_counted_as_the_loader_reads_it(data, tmp_path, doctor):
    masked = [{"dataset": "web", "tokens": [32, 33]}, {"dataset": "web", "tokens": [40, 97]}]
    masked.append({"at": 0, "ids": ["web7", "web39"]})
    found = doctor(data / "web", order="sequential", exclude=masked)["masked"]
    with cl.make_dataloader(str(tmp_path / "run.yaml"), micro_batch_size=4) as loader:
        without = sum(int((batch["loss_mask"].amax(1) == 0).sum()) for batch in loader)
        tokens = 1 + 57 + sum(11 * (4 + k % 5) + 1 for k in (7, 39))
        total, windows = loader.blend.datasets["web"].num_tokens, loader.run.num_samples
    assert f"web: {tokens} of {total:,} tokens ({tokens / total:.1%}), and with them {without} of {windows} w" in found
    alone = [{"at": 0, "ids": ["web7"], "take": "own"}]
    tokens = 11 * (4 + 7 % 5) + 1
    found = doctor(data / "web", order="sequential", exclude=alone)["masked"]
    assert f"web: {tokens} tokens alone ({tokens / total:.1%})" in found


def test_cold_reads_every_window_once(data, doctor, tmp_path, capsys, monkeypatch):
    dropped = set()

    def fadvise(descriptor, offset, size, advice):
        if advice == os.POSIX_FADV_DONTNEED:
            assert (offset, size) == (0, 0)
            dropped.add(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "posix_fadvise", fadvise)
    found = doctor(data / "stream", "--seconds", "60", "--cold", "--batch-size", "3", tracks={"quality": {}})
    total, last = found["samples"]["web"], found["batches"]
    assert found["single"]["samples"] == total // 2
    assert 0 <= found["single"]["samples"] + last["samples"] - total < 3  # the last batch is a whole one
    assert found["single"]["repeated"] == 0
    assert last["tokens_per_second_per_thread"] * last["threads"] == pytest.approx(last["tokens_per_second"])
    assert last["repeated"] < 3
    parts = ("stream.bin", "documents.bin", "quality.index", "quality.data", "quality.spans")
    assert {f"{shard:05}.{part}" for shard in range(3) for part in parts} >= dropped
    assert {f"{shard:05}.{part}" for shard in range(3) for part in parts[:2]} <= dropped
    assert any("quality" in name for name in dropped)
    assert main(["doctor", str(tmp_path / "run.yaml"), "--cold"]) == 0
    assert "when all of its windows had been read" in capsys.readouterr().out


def test_an_object_store(data, doctor, tmp_path, capsys):
    fsspec.filesystem("memory").put(str(data / "stream"), "/bench/stream", recursive=True)
    found = doctor("memory://bench/stream")
    assert found["unverified"] == ["web"]
    assert found["batches"]["from"] == "unknown"
    assert found["batches"]["tokens_per_second"] > 0
    assert main(["doctor", str(tmp_path / "run.yaml"), "--cold"]) == 2
    assert "--cold: found a dataset in an object store" in capsys.readouterr().err
