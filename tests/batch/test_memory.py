"""Blocks of memory come back when nobody can see them any more."""

import gc

import numpy as np
import torch

from conceptloader.batch.layout import BatchMemory


def address(array):
    return array.__array_interface__["data"][0]


def test_a_block_is_used_again_only_when_every_view_is_gone():
    pool = BatchMemory()
    block = pool.allocate(4096)
    where = address(block)
    tensor = torch.from_numpy(np.ndarray((4, 8), np.int64, block, 64))[1:, 2:]
    del block
    gc.collect()
    others = [pool.allocate(4096) for _ in range(3)]
    assert where not in map(address, others)
    tensor.fill_(7)
    row = tensor[0].numpy()[1:]
    del tensor
    assert address(pool.allocate(4096)) != where
    assert row.tolist() == [7] * 5
    del row
    assert address(pool.allocate(4096)) == where
    assert address(pool.allocate(8192)) != where


def test_no_more_than_asked_for_is_kept():
    pool = BatchMemory(keep=2)
    blocks = [pool.allocate(64) for _ in range(5)]
    del blocks
    assert len(pool._blocks[64]) == 2
