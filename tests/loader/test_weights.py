"""Weights that are set while a run is going: what is read, resumed, logged and refused."""

import itertools
import time

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.testing import random_documents, write_dataset
from tests.raises import cells, raises

PREFETCH = 3


@pytest.fixture
def config(tmp_path):
    datasets = {
        name: {"path": write_dataset(tmp_path / name, random_documents(80, seed=k, prefix=name)), "weight": 1}
        for k, name in enumerate(["a", "b", "c"])
    }
    return {"seq_len": 16, "datasets": datasets, "block": 8, "loader": {"prefetch_batches": PREFETCH}}


def make(config, dp_rank=0, **options):
    return cl.make_dataloader(
        config, **{"dp_rank": dp_rank, "dp_size": 2, "micro_batch_size": 2, "global_batch_size": 8, **options}
    )


def rows(batches, number=None):
    """(sample, dataset, tokens)."""
    return [
        (sample, dataset, tuple(tokens))
        for batch in itertools.islice(batches, number)
        for sample, dataset, tokens in zip(
            batch["sample_index"].tolist(), batch["dataset_id"].tolist(), batch["input_ids"].tolist(), strict=True
        )
    ]


def test_what_was_read_ahead_of_a_late_batch_is_read_again(config):
    """More than `prefetch_batches` of it: weights hold as early as ever, and for all that follows."""
    made = []

    def late(batch):
        """In the threads that read: the second batch waits for many others."""
        made.append(batch["sample_index"][0])
        deadline = time.monotonic() + 20
        while batch["sample_index"][0] == 8 and len(made) < 30 and time.monotonic() < deadline:
            time.sleep(0.001)
        return batch

    loader = make(config, num_samples=320, batch_transform=late)
    batches = iter(loader)
    found = rows(batches, 3)
    assert len(made) >= 30
    at = loader.set_weights({"a": 1})
    assert at == 16
    found += rows(batches)
    phases = [{"at": 0, "weights": {"a": 1, "b": 1, "c": 1}}, {"at": 16, "weights": {"a": 1}}]
    datasets = {name: {"path": entry["path"]} for name, entry in config["datasets"].items()}
    assert found == rows(make({**config, "phases": phases, "datasets": datasets}, num_samples=320))


def test_what_is_refused_changes_nothing(config, tmp_path):
    loader = make(config, num_samples=400)
    rows(loader, 3)
    loader.log_start(tmp_path, 0)
    loader.set_weights({"a": 1}, at=100)
    state, log = loader.state_dict(), (tmp_path / "conceptloader_runs.jsonl").read_bytes()
    for weights, at, problem in [
        ({"a": 1}, 11, "at: found 11, expected at least 12"),
        ({"a": 1}, 100, "found a start at sample 100, expected more than 100"),
        ({"a": 1}, 50, "found a start at sample 50, expected more than 100"),
        ({"a": 1}, -1, "at: found -1"),
        ({"A": 1}, None, "weights.A: found an unknown dataset"),
        ({}, None, "no weights"),
        ({"a": 0}, None, "found 0, expected a number above 0"),
        ({"a": float("nan")}, None, "found nan"),
        ({"a": "1"}, None, "found '1', expected a number"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            loader.set_weights(weights, at=at)
        assert loader.state_dict() == state
    assert (tmp_path / "conceptloader_runs.jsonl").read_bytes() == log
    assert loader.set_weights({"a": 2}) == 104  # behind the weights at 100


def test_limits_of_epochs_hold(config):
    config["datasets"]["a"]["max_epochs"] = 0.5
    loader = make(config, num_samples=400)
    with raises(ConfigError, "datasets.a.max_epochs"):
        loader.set_weights({"a": 1})


def test_an_order_without_weights(config):
    for entry in config["datasets"].values():
        del entry["weight"]
    loader = make({**config, "order": "sequential"})
    with raises(ConfigError, found="order sequential"):
        loader.set_weights({"a": 1})


def test_a_configuration_that_contradicts_them(config):
    loader = make(config)
    rows(loader, 1)
    loader.set_weights({"a": 1, "b": 3}, at=40)
    state = loader.state_dict()
    other = {**config, "phases": [{"at": 40, "weights": {"a": 2, "b": 5}}]}
    with raises(ResumeError, "set from sample 40 on", found="a phase there"):
        make(other).load_state_dict(state)
    fewer = {**config, "datasets": {name: config["datasets"][name] for name in "ac"}}
    with raises(ResumeError, found="without the datasets ['b']"):
        make(fewer).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({}, "datasets.b.weight"),
        ({"phases": [{"at": 0, "weights": {"a": 1, "b": 1e-30, "c": 1}}]}, "phases[0].weights.b"),
        ({"phases": [{"at": 9, "weights": {"a": 1, "b": 1e-30}}]}, "phases[0].weights.b"),
    ],
)
def test_errors_name_the_key_of_a_weight_as_the_file_has_it(config, change, key):
    for name, dataset in config["datasets"].items():
        dataset["weight"] = 1e-30 if (name, change) == ("b", {}) else 1
        if change and not change["phases"][0]["at"]:
            del dataset["weight"]
    with raises(ConfigError, key, "1e-30"):
        cl.open_blend({**config, **change})


OTHERS = """
batch_size | micro_batch_size
num_workers | num_threads
shuffle | order: sequential
collate_fn | batch_transform
dp_sise | did you mean dp_size?
"""


@pytest.mark.parametrize(("name", "fix"), cells(OTHERS))
def test_arguments_of_other_loaders_are_named(config, name, fix):
    with raises(ConfigError, name, "an unknown argument", fix=fix):
        make(config, **{name: 1})


def ramped(config, **ramp):
    datasets = {name: {"path": entry["path"]} for name, entry in config["datasets"].items()}
    later = {"at": 40, "weights": {"b": 1, "c": 3}, **({"ramp": ramp} if ramp else {})}
    return {**config, "datasets": datasets, "phases": [{"at": 0, "weights": {"a": 9, "b": 1}}, later]}


def test_more_weights_than_states_have_room_for(config, monkeypatch):
    """2 before a ramp, 3 in each of its 63 steps, 2 after it."""
    for most, ramp in ((193, {"samples": 120}), (3, {})):
        monkeypatch.setattr("conceptloader.config.blend.MAX_WEIGHTS", most)
        cl.open_blend(ramped(config, **ramp))
    monkeypatch.setattr("conceptloader.config.blend.MAX_WEIGHTS", 192)
    with raises(ConfigError, "phases", "193 weights in all", "at most 192"):
        cl.open_blend(ramped(config, samples=120))
