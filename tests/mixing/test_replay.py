"""`replay: DIRECTORY`: what a run has learned is a plan, carried out to the sample wherever it is read."""

import json

import pytest
import torch
from torch.utils.data import DataLoader

import conceptloader as cl
from conceptloader.config import load_config
from conceptloader.errors import ConfigError
from tests.mixing import learned
from tests.mixing.learned import BATCH, SAMPLES
from tests.raises import raises


def read(loader):
    """Dataset and inputs of each sample of a loader's batches, up to SAMPLES of all ranks."""
    found = []
    for batch in loader:
        found += zip(batch["dataset_id"].tolist(), batch["input_ids"].tolist(), strict=True)
        if len(found) >= SAMPLES:
            break
    return found[:SAMPLES]


@pytest.fixture
def config(tmp_path):
    return learned.run(tmp_path)


def test_other_batch_sizes_and_samples_alone(config):
    config, samples = config
    assert len({k for k, _ in samples}) == 3
    for size in (BATCH, 2 * BATCH, 3 * BATCH, 5):
        assert read(cl.make_dataloader(config, micro_batch_size=size)) == samples
        assert read(cl.batches(config, micro_batch_size=size)) == samples
    dataset = cl.SampleDataset(config, num_samples=SAMPLES)
    assert read(DataLoader(dataset, batch_size=7, num_workers=2)) == samples
    source = cl.GrainSource(config, num_samples=SAMPLES)
    assert [(int(source[k]["dataset_id"]), source[k]["input_ids"].tolist()) for k in range(SAMPLES)] == samples
    ranks = [
        read(cl.batches(config, dp_rank=rank, dp_size=2, micro_batch_size=3, num_samples=SAMPLES)) for rank in (0, 1)
    ]
    assert sorted(ranks[0] + ranks[1]) == sorted(samples)


def test_what_cannot_be_set(config, tmp_path, monkeypatch):
    """Is an error at launch."""
    config, _ = config
    with raises(ConfigError, "replay", "no run"):
        cl.open_blend({**config, "replay": str(tmp_path / "nowhere")})
    for names in (("easy", "hard"), ("easy", "hard", "middle", "more")):
        datasets = {name: config["datasets"].get(name, config["datasets"]["easy"]) for name in names}
        with raises(
            ConfigError, "replay", "a run of the datasets easy, hard, middle", f"configuration: {', '.join(names)}"
        ):
            cl.open_blend({**config, "datasets": datasets})
    others = {name: {**entry, "weight": 1 + k} for k, (name, entry) in enumerate(config["datasets"].items())}
    with raises(ConfigError, "replay", "'hard': 1, 'middle': 1}, and the datasets have {'easy': 1, 'hard': 2"):
        cl.open_blend({**config, "datasets": others})
    with raises(ConfigError, "replay", "'easy': 1"):
        cl.open_blend({**config, "weights": "by_size", "datasets": {n: {"path": e["path"]} for n, e in others.items()}})
    with raises(ConfigError, "replay", "with mixing"):
        cl.open_blend({**config, "mixing": {"odm": {}}})
    with raises(ConfigError, "replay", "''"):
        cl.open_blend({**config, "replay": ""})
    with raises(ConfigError, "phases", "with replay"):
        cl.open_blend({**config, "phases": [{"at": 9, "weights": {"easy": 1}}]})
    limited = {**config, "datasets": {n: {**e, "max_epochs": 0.01} for n, e in config["datasets"].items()}}
    with raises(ConfigError, ".max_epochs"):
        next(iter(cl.make_dataloader(limited, micro_batch_size=BATCH, num_samples=SAMPLES)))
    monkeypatch.setattr("conceptloader.config.blend.MAX_WEIGHTS", 26)
    with raises(ConfigError, "replay", ", 27 weights in all", "at most 26"):
        cl.open_blend(config)


def test_paths_are_those_of_the_yaml(config, tmp_path):
    (tmp_path / "run.yaml").write_text(json.dumps({**config[0], "replay": "log"}))
    assert load_config(tmp_path / "run.yaml").replay == str(tmp_path / "log")
    assert read(cl.make_dataloader(tmp_path / "run.yaml", micro_batch_size=BATCH)) == config[1]
    assert torch.is_tensor(next(iter(cl.make_dataloader(tmp_path / "run.yaml", micro_batch_size=1)))["input_ids"])
