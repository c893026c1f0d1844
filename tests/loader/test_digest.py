"""The digest of a step agrees where the samples do, and only there."""

from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.raises import raises

STEPS, BATCH = 4, 12


def steps(config: dict[str, Any], dp_size: int, dp_rank: int, micro_batch_size: int) -> list[list[Any]]:
    with cl.make_dataloader(
        config, dp_rank=dp_rank, dp_size=dp_size, micro_batch_size=micro_batch_size, global_batch_size=BATCH
    ) as loader:
        batches = iter(loader)
        return [[next(batches) for _ in range(BATCH // dp_size // micro_batch_size)] for _ in range(STEPS)]


def digests(config: dict[str, Any], dp_size: int, micro_batch_size: int) -> list[int]:
    """Of each step, summed over the data-parallel ranks, as an all-reduce in float64 would do it."""
    ranks = [
        [cl.adapters.batch_digest(step) for step in steps(config, dp_size, rank, micro_batch_size)]
        for rank in range(dp_size)
    ]
    return [int(sum(map(float, step))) % (1 << 40) for step in zip(*ranks, strict=True)]


def test_the_same_for_any_number_of_ranks(config: dict[str, Any]) -> None:
    wanted = digests(config, 1, BATCH)
    assert len(set(wanted)) == STEPS
    assert digests(config, 2, 3) == digests(config, 3, 1) == digests(config, 4, 3) == wanted
    assert digests({**config, "seed": 6}, 1, BATCH) != wanted


@pytest.mark.parametrize("name", ["sample_index", "dataset_id", "input_ids", "labels"])
def test_whatever_differs_shows(config: dict[str, Any], name: str) -> None:
    batch = steps(config, 1, 0, BATCH)[0][0]
    other = {**batch, name: np.asarray(batch[name]).copy()}
    assert cl.adapters.batch_digest(other) == cl.adapters.batch_digest(batch)
    other[name].reshape(-1)[-1] += 1
    assert cl.adapters.batch_digest(other) != cl.adapters.batch_digest(batch)


def test_needs_the_indices_of_samples(config: dict[str, Any]) -> None:
    batch = steps(config, 1, 0, BATCH)[0][0]
    with raises(ConfigError, "outputs.sample_index"):
        cl.adapters.batch_digest({name: value for name, value in batch.items() if name != "sample_index"})
