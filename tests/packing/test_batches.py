"""Batches of packs: the compiled reader against the plain one, which tests/oracle compares with the documentation."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.batch.open import decide_layout
from conceptloader.batch.reader import BatchReader
from conceptloader.blend import Outputs
from conceptloader.blend.packing import Packing
from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.testing import PlainReader, RawDocument, write_dataset
from tests.batch.compare import assert_same
from tests.packing.packed import make_view, random_packs
from tests.raises import raises


@pytest.mark.parametrize("seed", range(8))
def test_equals_the_plain_reader(tmp_path: Path, seed: int) -> None:
    view, _, layout = random_packs(tmp_path, 100 + seed)
    rng = np.random.default_rng(seed)
    reader = BatchReader(None, [None, view], layout)
    for _ in range(2):
        size = int(rng.integers(0, 9))
        packs = rng.integers(0, view.count, size).astype(np.uint64)
        arguments = np.ones(size, np.int64), packs, rng.integers(0, 1 << 40, size).astype(np.uint64)
        wanted = PlainReader(None, [None, view], layout).read(arguments[2], picked=arguments[:2])
        assert_same(reader.read(arguments[2], picked=arguments[:2]), wanted)
        assert_same(pickle.loads(pickle.dumps(reader)).read(arguments[2], picked=arguments[:2]), wanted)


def test_more_pieces_than_there_is_room_for(tmp_path: Path) -> None:
    raw = [RawDocument(id=str(k), tokens=[k % 900 + 1]) for k in range(20000)]
    view = make_view(Path(write_dataset(tmp_path / "d", raw)), Packing(seq_len=256, bins=64))
    layout = decide_layout([view], 256, Outputs(cu_seqlens=True))
    packs = np.array([0, 63, 64, view.count - 1], np.uint64)
    arguments = np.zeros(4, np.int64), packs, packs
    wanted = PlainReader(None, [view], layout).read(arguments[2], picked=arguments[:2])
    assert wanted["max_seqlen"] == 256  # the padding of the last one
    assert_same(BatchReader(None, [view], layout).read(arguments[2], picked=arguments[:2]), wanted)


def test_what_is_refused_is_said_by_both_readers(tmp_path: Path) -> None:
    raw = [RawDocument(id=str(k), tokens=[1] * n) for k, n in enumerate([5, 9, 3])]
    view = make_view(Path(write_dataset(tmp_path / "d", raw)), Packing(seq_len=8, bins=4, overflow="refuse"))
    layout = decide_layout([view], 8, Outputs())
    zero = np.zeros(1, np.int64), np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    for reader in (PlainReader, BatchReader):
        with pytest.raises(ConfigError, match=r"found refuse, and document 1 of 9 tokens, expected at most 8"):
            reader(None, [view], layout).read(zero[2], picked=zero[:2])


def test_no_document_table(tmp_path: Path) -> None:
    tokens = np.arange(1000, dtype="<u2")
    tokens.tofile(tmp_path / "tokens.bin")
    flat = str(tmp_path / "tokens.bin")
    assert main(["adopt", flat, "--out", str(tmp_path / "d"), "--kind", "flat", "--dtype", "uint16"]) == 0
    with raises(ConfigError, "datasets.a: packing", "no document table in shard 0"):
        cl.open_blend({"seq_len": 8, "packing": {"bins": 4}, "datasets": {"a": {"path": str(tmp_path / "d")}}})


@pytest.mark.parametrize(
    "out", [{"quarantine": [{"dataset": "a", "tokens": [6, 7]}]}, {"exclude": [{"at": 0, "ids": ["1"]}]}]
)
def test_parts_that_are_left_out_keep_their_room_and_their_positions(tmp_path: Path, out: Any) -> None:
    raw = [RawDocument(id=str(k), tokens=[k + 1] * n) for k, n in enumerate([5, 4, 3])]
    config = {
        "seq_len": 16,
        "packing": {"bins": 2},
        "order": "sequential",
        "datasets": {"a": {"path": str(write_dataset(tmp_path / "d", raw))}},
        "outputs": {"document_ids": True, "cu_seqlens": True},
    }
    with cl.make_dataloader(config | out, micro_batch_size=1) as loader:
        batch = next(iter(loader))
    assert batch["input_ids"][0].tolist() == [1] * 5 + [0] * 4 + [3] * 3 + [0] * 4
    assert batch["position_ids"][0].tolist() == [*range(5), *range(4), *range(3), *range(4)]
    assert batch["cu_seqlens"].tolist() == [0, 5, 9, 12, 16]
    assert batch["document_ids"][0].tolist() == [0] * 5 + [-1] * 4 + [2] * 3 + [-1] * 4
    assert batch["loss_mask"][0].tolist() == [1] * 4 + [0] * 5 + [1] * 2 + [0] * 5


def test_a_shard_that_is_quarantined_empties_the_blocks_that_touch_it_alone(tmp_path: Path) -> None:
    raw = [RawDocument(id=str(k), tokens=[k + 1] * 8) for k in range(6)]
    config = {
        "seq_len": 16,
        "packing": {"bins": 2},  # blocks of 16 tokens, as the shards
        "order": "sequential",
        "datasets": {"a": {"path": str(write_dataset(tmp_path / "d", raw, shards=3))}},
        "quarantine": [{"dataset": "a", "tokens": [16, 32]}],
    }
    with cl.make_dataloader(config, micro_batch_size=6) as loader:
        rows = next(iter(loader))["input_ids"].tolist()
    empty = [0] * 16
    assert rows == [[1] * 8 + [2] * 8, empty, empty, empty, [5] * 8 + [6] * 8, empty]
