"""Batches in numpy, and samples by index: those of the loader in torch, with its states, without torch."""

import itertools
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, ResumeError
from tests.batch.compare import assert_same
from tests.corpora.small import random_datasets
from tests.raises import raises

SIZES = {"dp_rank": 1, "dp_size": 2, "micro_batch_size": 4, "global_batch_size": 16}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    datasets = random_datasets(tmp_path_factory.mktemp("data"), "ab", 80, weight=1)
    datasets["b"]["weight"] = 2
    outputs = {"sample_index": True, "cu_seqlens": True, "mask_document_boundaries": True}
    return {"seq_len": 16, "datasets": datasets, "tracks": {"concepts": {"layout": "ragged"}}, "outputs": outputs}


def test_states_and_weights_are_those_of_torch(config):
    """Each goes on with the state of the other; that their arrays are equal, tests/entries shows."""
    ours, theirs = cl.batches(config, **SIZES), cl.make_dataloader(config, **SIZES)
    for number, (found, expected) in enumerate(zip(itertools.islice(ours, 6), theirs, strict=False)):
        assert_same(found, dict(expected))
        assert all(isinstance(value, (np.ndarray, int)) for value in found.values())
        assert ours.state_dict() == theirs.state_dict()
        if number == 2:
            weights = {"a": 5.0, "b": 1.0}
            assert ours.set_weights(weights) == theirs.set_weights(weights)
    again = cl.batches(config, micro_batch_size=2, batch_transform=lambda batch: batch["sample_index"].tolist())
    again.load_state_dict(theirs.state_dict())
    assert next(iter(again)) == [48, 49]
    theirs.load_state_dict(ours.state_dict())
    assert next(iter(theirs))["sample_index"].tolist() == [49, 51, 53, 55]


@pytest.mark.parametrize("given", [{"device": "cpu"}, {"check_ranks": True}])
def test_what_needs_torch_is_refused(config, given):
    (name,) = given
    with raises(ConfigError, name, found="for batches, whose arrays are numpy's"):
        cl.batches(config, micro_batch_size=2, **given)


def test_it_works_without_torch(config):
    code = f"""
import sys
sys.modules["torch"] = None
import conceptloader as cl
config = {config!r}
with cl.batches(config, micro_batch_size=4) as loader:
    assert next(iter(loader))["sample_index"].tolist() == [0, 1, 2, 3]
    assert cl.GrainSource({{**config, "outputs": {{}}}})[5]["sample_index"] == 5
    print(loader.state_dict()["conceptloader"])
"""
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert json.loads(printed)["consumed_samples"] == 4


def test_a_source_has_the_samples_of_the_dataset(config):
    with raises(ConfigError, "outputs.cu_seqlens", "GrainSource"):
        cl.GrainSource(config)[0]
    config = {**config, "outputs": {**config["outputs"], "cu_seqlens": False}}
    source, dataset = cl.GrainSource(config, 100), cl.SampleDataset(config, 100)
    assert len(source) == len(dataset) == 100
    assert_same(pickle.loads(pickle.dumps(source))[-10], dataset[90])
    source.load_state_dict(source.state_dict_at(24))
    assert (len(source), int(source[0]["sample_index"])) == (76, 24)
    with cl.make_dataloader(config, micro_batch_size=4, global_batch_size=8) as loader:
        loader.load_state_dict(source.state_dict_at(8))
        assert loader.consumed_samples == 32
        next(iter(loader))
        with raises(ResumeError, "source state", "within the step that began at 32"):
            source.load_state_dict(loader.state_dict())
    with raises(ResumeError, found="seed"):
        cl.GrainSource({**config, "seed": 9}).load_state_dict(source.state_dict_at(8))
    with raises(ConfigError, "sample index"):
        source[1.5]
