"""Weights that are set while a run is going: what is read, resumed, logged and refused."""

import itertools

import pytest
import yaml

import conceptloader as cl
from conceptloader.errors import ConfigError, ResumeError
from tests.corpora.small import random_datasets
from tests.raises import cells, raises


@pytest.fixture
def config(tmp_path):
    datasets = random_datasets(tmp_path, "abc", 80, weight=1)
    return {"seq_len": 16, "datasets": datasets, "block": 8, "loader": {"prefetch_batches": 3}}


def make(config, dp_rank=0, **options):
    return cl.make_dataloader(
        config, **{"dp_rank": dp_rank, "dp_size": 2, "micro_batch_size": 2, "global_batch_size": 8, **options}
    )


REFUSED = """
{weights: {a: 1}, at: 11} | at: found 11, expected at least 12
{weights: {a: 1}, at: 100} | found a start at sample 100, expected more than 100
{weights: {a: 1}, at: 50} | found a start at sample 50, expected more than 100
{weights: {a: 1}, at: -1} | at: found -1
{weights: {A: 1}} | weights.A: found an unknown dataset
{weights: {}} | no weights
{weights: {a: 0}} | found 0, expected a number above 0
{weights: {a: .nan}} | found nan
{weights: {a: '1'}} | found '1', expected a number
"""


def test_what_is_refused_changes_nothing(config, tmp_path):
    loader = make(config, num_samples=400)
    list(itertools.islice(loader, 3))
    loader.log_start(tmp_path, 0)
    loader.set_weights({"a": 1}, at=100)
    state, log = loader.state_dict(), (tmp_path / "conceptloader_runs.jsonl").read_bytes()
    for given, problem in cells(REFUSED):
        with pytest.raises(ConfigError, match=problem):
            loader.set_weights(**yaml.safe_load(given))
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
    next(iter(loader))
    loader.set_weights({"a": 1, "b": 3}, at=40)
    state = loader.state_dict()
    other = {**config, "phases": [{"at": 40, "weights": {"a": 2, "b": 5}}]}
    with raises(ResumeError, "set from sample 40 on", found="a phase there"):
        make(other).load_state_dict(state)
    fewer = {**config, "datasets": {name: config["datasets"][name] for name in "ac"}}
    with raises(ResumeError, found="without the datasets ['b']"):
        make(fewer).load_state_dict(state)


OTHERS = """
batch_size | micro_batch_size
num_workers | num_threads
shuffle | order: sequential
collate_fn | batch_transform
seed | set seed in the configuration
dp_sise | did you mean dp_size?
"""


@pytest.mark.parametrize(("name", "fix"), cells(OTHERS))
def test_arguments_of_other_loaders_are_named(config, name, fix):
    with raises(ConfigError, name, "an unknown argument", fix=fix):
        make(config, **{name: 1})
