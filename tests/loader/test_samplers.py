"""Samplers: who reads what, across epochs, ranks, weights and resumes."""

import json
from collections import Counter

import pytest
import torch
from torch.utils.data import TensorDataset

import conceptloader as cl
from conceptloader.errors import ConfigError, ResumeError, UnboundedLoaderError
from conceptloader.loader.torch.micro_batches import MicroBatches
from conceptloader.order.partition import Partition
from tests.raises import raises

SIZES = [0, 40, 100, 107]


def epochs(sampler, *numbers):
    found = []
    for number in numbers:
        sampler.set_epoch(number)
        found.append(list(sampler))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("drop_last", [True, False])
def test_distributed_sampler_gives_every_index_once_an_epoch(ranks, drop_last):
    data = TensorDataset(torch.arange(37))
    samplers = [cl.DistributedSampler(data, ranks, rank, seed=3, drop_last=drop_last) for rank in range(ranks)]
    reference = torch.utils.data.DistributedSampler(data, ranks, 0, drop_last=drop_last)
    for epoch in range(3):
        found = [epochs(sampler, epoch)[0] for sampler in samplers]
        assert {len(indices) for indices in found} == {len(reference)} == {len(samplers[0])}
        counts = Counter(index for indices in found for index in indices)
        if drop_last:
            assert max(counts.values()) == 1
        else:
            assert set(counts) == set(range(37))
            assert sum(counts.values()) - 37 == len(reference) * ranks - 37
    first, second = epochs(samplers[0], 0, 1)
    assert sorted(first) != first
    assert first != second


def test_the_mixture_does_not_depend_on_the_number_of_ranks():
    alone = cl.MixtureSampler(SIZES, [3, 2, 1], seed=1)
    [whole] = epochs(alone, 4)
    for ranks in (2, 5):
        parts = [epochs(cl.MixtureSampler(SIZES, [3, 2, 1], ranks, r, seed=1), 4)[0] for r in range(ranks)]
        dealt = [part[k] for k in range(len(parts[0])) for part in parts]
        assert dealt == whole[: len(dealt)]


def test_weights_hold_and_no_sample_repeats_before_its_dataset_is_through():
    sampler = cl.MixtureSampler(SIZES, [3, 2, 1])
    drawn = [index for epoch in epochs(sampler, *range(6)) for index in epoch]
    for low, high, share in ((0, 40, 3 / 6), (40, 100, 2 / 6), (100, 107, 1 / 6)):
        mine = [index for index in drawn if low <= index < high]
        assert abs(len(mine) - share * len(drawn)) < 70
        size = high - low
        for k in range(0, len(mine) - size, size):
            assert len(set(mine[k : k + size])) == size
    even = cl.MixtureSampler(SIZES, [100, 10, 1], temperature=1e9)
    counts = Counter((index >= 40) + (index >= 100) for e in epochs(even, *range(9)) for index in e)
    assert max(counts.values()) - min(counts.values()) <= 8


def test_new_weights_hold_from_the_next_epoch_border_and_are_in_the_state():
    sampler, steady = (cl.MixtureSampler(SIZES, [1, 1, 0], seed=2) for _ in range(2))
    before = epochs(sampler, 0)
    running = iter(sampler)
    got = [next(running) for _ in range(20)]
    sampler.update_weights([1, 0, 0])
    assert got + list(running) == before[0]  # the epoch at hand stays as it was
    after = epochs(sampler, 0, 1, 2)
    assert after[0] == before[0]
    assert max(after[1] + after[2]) < 40
    assert epochs(steady, 1) != after[1:2]

    resumed = cl.MixtureSampler(SIZES, [1, 1, 0], 3, 0, seed=2)
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert resumed.epoch == 2
    resumed.update_weights([1, 0, 0])  # as a trainer does that derives its phases from the step: no new phase
    assert epochs(resumed, 1, 2) == [after[1][::3][:35], after[2][::3][:35]]


def test_weights_given_before_the_first_iterator_hold_at_once():
    sampler = cl.MixtureSampler(SIZES, [1, 1, 1])
    sampler.update_weights([0, 0, 5])
    assert min(epochs(sampler, 0)[0]) >= 100


def test_another_order_is_refused():
    state = cl.MixtureSampler(SIZES, [1, 1, 1], seed=1).state_dict()
    with raises(ResumeError, path="seed", found="2", expected="1, as saved"):
        cl.MixtureSampler(SIZES, [1, 1, 1], seed=2).load_state_dict(state)
    with raises(ResumeError, "epoch_size"):
        cl.MixtureSampler([0, 40, 100, 108], [1, 1, 1], seed=1).load_state_dict(state)


@pytest.mark.parametrize("weights", [[1, 1], [0, 0, 0], [1, -1, 1], [float("nan"), 1, 1]])
def test_wrong_weights_are_refused(weights):
    with raises(ConfigError, "weights"):
        cl.MixtureSampler(SIZES, weights)
    with raises(ConfigError, "weights"):
        cl.MixtureSampler(SIZES, [1, 1, 1]).update_weights(weights)


def test_micro_batches_of_all_ranks_are_the_order() -> None:
    """The adapters' batch sampler: what makes no whole micro batch for every rank is left out."""
    partition = Partition(micro_batch_size=3, dp_size=2, scheme="contiguous")
    for total in (17, 20, 22):
        ranks = [MicroBatches(partition, rank, 5, total) for rank in range(2)]
        assert [len(rank) for rank in ranks] == [2, 2]
        assert [n for rows in zip(*ranks, strict=True) for row in rows for n in row] == list(range(5, 17))
    with pytest.raises(UnboundedLoaderError):
        len(MicroBatches(partition, 0, 5))
    with raises(ConfigError, "dp_rank", "2"):
        MicroBatches(partition, 2, 5)
