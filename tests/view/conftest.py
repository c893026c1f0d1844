"""A small run with text, nested spans, two phases, excluded tokens and a run log."""

import json

import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main
from tests.corpora.records import write_rows

SEQ_LEN = 64
WORDS = ["the", "cat", "sat", "on", "a", "red", "mat", "and", "saw", "one", "blue", "bird", "in", "an", "old", "tree"]


def document(name, number):
    """A sentence with an animal in it; "clause" around, "animal" inside, which every third document has."""
    words = [WORDS[(number * 7 + k * (3 + number % 4)) % len(WORDS)] for k in range(10 + number % 15)]
    if number % 3 == 0:
        words[5] = "bird"
    text = " ".join(words) + "."
    spans = [{"start": 0, "end": len(" ".join(words[:8])), "concepts": ["clause"]}]
    if number % 3 == 0:
        start = len(" ".join(words[:5])) + 1
        spans.append({"start": start, "end": start + 4, "concepts": ["animal"]})
    return {"id": f"{name}-{number}", "text": text, "spans": spans}


def build(folder, name, rows, names):
    write_rows(folder / f"{name}.jsonl", rows)
    (folder / "names.json").write_text(json.dumps(names))
    command = ["build", str(folder / f"{name}.jsonl"), "--out", str(folder / name), "--tokenizer", "bytes"]
    command += ["--vocabulary", str(folder / "names.json"), "--overlap", "union", "--workers", "1", "-q"]
    assert main(command) == 0


def log_start(config, log):
    """As a loader of two ranks with 8 samples a step does."""
    blend = cl.open_blend(config)
    partition = cl.adapters.Partition(micro_batch_size=2, dp_size=2, scheme="strided")
    start = cl.adapters.RunStart.of(blend.spec, cl.adapters.BatchSchedule.constant(8), partition, SEQ_LEN)
    cl.adapters.RunLog(log).append(start, blend.spec, blend.config.to_dict())


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """run.yaml and its datasets books and web; checkpoints/ with a run log of 2 ranks, 8 samples a step."""
    folder = tmp_path_factory.mktemp("view")
    for name, count in (("books", 60), ("web", 90)):
        build(folder, name, [document(name, k) for k in range(count)], ["clause", "animal", "plant"])
    config = {
        "seq_len": SEQ_LEN,
        "datasets": {"books": {"path": "books", "weight": 1}, "web": {"path": "web", "weight": 3}},
        "phases": [{"at": 160, "weights": {"books": 1, "web": 1}}],
        "exclude": [{"dataset": "web", "tokens": [200, 260]}],
        "tracks": {"concepts": {}},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    packed = {**config, "seq_len": 256, "packing": {"bins": 8}}
    del packed["exclude"]
    (folder / "packs.yaml").write_text(yaml.safe_dump(packed))
    (folder / "checkpoints").mkdir()
    log_start(folder / "run.yaml", folder / "checkpoints")
    return folder
