"""The digest of a step shows whatever differs; docs/reliability.md shows it to be equal for any number of ranks."""

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.raises import raises


@pytest.fixture
def batch(config):
    with cl.make_dataloader(config, micro_batch_size=12) as loader:
        return next(iter(loader))


@pytest.mark.parametrize("name", ["sample_index", "dataset_id", "input_ids", "labels"])
def test_whatever_differs_shows(batch, name):
    other = {**batch, name: np.asarray(batch[name]).copy()}
    assert cl.adapters.batch_digest([other]) == cl.adapters.batch_digest([batch])
    other[name].reshape(-1)[-1] += 1
    assert cl.adapters.batch_digest([other]) != cl.adapters.batch_digest([batch])


def test_needs_the_indices_of_samples(batch):
    with raises(ConfigError, "outputs.sample_index"):
        cl.adapters.batch_digest({name: value for name, value in batch.items() if name != "sample_index"})
