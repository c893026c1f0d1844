"""Batches of packs at their edges, and the inverse of packing; random ones are in tests/oracle."""

import re
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.config import Outputs
from conceptloader.errors import ConfigError
from conceptloader.loader.batch.open import decide_layout
from conceptloader.loader.batch.reader import BatchReader
from conceptloader.testing import RawDocument, write_dataset
from tests.batch.cases import make_view, read
from tests.packing.plain import parts_of
from tests.raises import raises


def test_more_pieces_than_there_is_room_for(tmp_path):
    raw = [RawDocument(id=str(k), tokens=[k % 900 + 1]) for k in range(20000)]
    view = make_view(Path(write_dataset(tmp_path / "d", raw)), 256, packing={"bins": 64})
    layout = decide_layout([view], 256, Outputs(cu_seqlens=True))
    packs = 0, 63, 64, view.count - 1
    batch = read(BatchReader(None, [view], layout), *packs)
    assert batch["max_seqlen"] == 256  # the padding of the last one
    for row, pack in zip(batch["input_ids"].tolist(), packs, strict=True):
        tokens = [part.document % 900 + 1 for part in parts_of(view.packs, pack)]
        assert row == tokens + [0] * (256 - len(tokens))


@pytest.mark.parametrize(
    ("sizes", "bins", "found"),
    [
        ([5, 9, 3], 4, "document 1 of 9 tokens while overflow is error, expected at most 8"),
        (
            [5] * 5,
            3,
            "document 3 of 5 tokens while overflow is error, expected room for it in a pack of its block; lower",
        ),
    ],
)
def test_what_is_refused_is_said(tmp_path, sizes, bins, found):
    path = write_dataset(tmp_path / "d", [RawDocument(id=str(k), tokens=[1] * n) for k, n in enumerate(sizes)])
    view = make_view(Path(path), 8, packing={"bins": bins, "overflow": "error"})
    with pytest.raises(ConfigError, match=rf"^sample 0: {re.escape(path)}: packing: found {found}"):
        read(BatchReader(None, [view], decide_layout([view], 8, Outputs())), 0)


def test_no_document_table(tmp_path):
    tokens = np.arange(1000, dtype="<u2")
    tokens.tofile(tmp_path / "tokens.bin")
    cl.adopt([tmp_path / "tokens.bin"], tmp_path / "d", dtype="uint16")
    with raises(ConfigError, "datasets.a: packing", "no document table in shard 0"):
        cl.open_blend({"seq_len": 8, "packing": {"bins": 4}, "datasets": {"a": {"path": str(tmp_path / "d")}}})
