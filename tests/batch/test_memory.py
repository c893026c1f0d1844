"""Blocks of memory come back when nobody can see them any more."""

import gc

import numpy as np
import pytest
import torch

import conceptloader as cl
from conceptloader.batch.compiled import CompiledReader
from conceptloader.batch.layout import BatchMemory
from conceptloader.batch.open import decide_layout
from conceptloader.blend import Outputs
from tests.batch.cases import make_view


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


ONES = np.float32([1, 2])
CHANGES = [
    *(("position_ids", where, values) for where in (0, 16, 31) for values in ([where + 1], [where - 1])),
    *(("position_ids", where, [where + 1, where]) for where in (0, 14, 30)),
    *(("loss_mask", where, [value]) for where in (0, 16, 31) for value in (0, -1, 2, np.nan, np.nextafter(*ONES))),
    ("loss_mask", 7, [0.5, 0.5]),
    ("loss_mask", 7, (~np.ones(1, np.float32).view(np.int32)).view(np.float32)),
]


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_written_into_a_batch_is_in_no_later_one(tmp_path, shared):
    """Positions and masks, which are the same in every batch, are left in memory that is used again."""
    build = cl.create_build(tmp_path / "ds", cl.BuildOptions(), plan=[0, 1])
    for shard in range(2):
        with build.shard(shard) as writer:
            writer.add_document(np.arange(80))
    cl.finalize(tmp_path / "ds")
    view = make_view("a", cl.open_dataset(tmp_path / "ds"), 0, 0, 4, 32)
    reader = CompiledReader(None, [view], decide_layout([view], 32, Outputs(shared_labels=shared), {}))
    samples, blocks = np.arange(4, dtype=np.uint64), set()
    for name, where, values in CHANGES:
        for row in range(4):  # the third lies in two shards
            batch = reader.read(samples, picked=(np.zeros(4, np.int64), samples))
            assert batch["position_ids"].tolist() == [list(range(32))] * 4, (name, where, values)
            assert batch["loss_mask"].tolist() == [[1.0] * 32] * 4, (name, where, values)
            blocks.add(address(batch["position_ids"]))
            batch[name][row, where : where + len(values)] = values
            del batch
    assert len(blocks) == 1, "it was the same memory"
