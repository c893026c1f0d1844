"""Samplers: who reads what, across epochs and ranks."""

import pytest
import torch

import conceptloader as cl
from conceptloader.errors import ConfigError, UnboundedLoaderError
from conceptloader.loader.torch.micro_batches import MicroBatches
from conceptloader.order.partition import Partition
from tests.raises import raises


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("drop_last", [True, False])
def test_every_index_of_an_epoch_is_given_once_as_by_the_sampler_of_torch(ranks, drop_last):
    samplers = [cl.EpochSampler(37, ranks, rank, drop_last) for rank in range(ranks)]
    theirs = [
        torch.utils.data.DistributedSampler(range(37), ranks, rank, shuffle=False, drop_last=drop_last)
        for rank in range(ranks)
    ]
    for epoch in range(3):
        for sampler, their in zip(samplers, theirs, strict=True):
            sampler.set_epoch(epoch)
            assert list(sampler) == [37 * epoch + index for index in their]
            assert len(sampler) == len(their)


def test_micro_batches_of_all_ranks_are_the_order():
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
