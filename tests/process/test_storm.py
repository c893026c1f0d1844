"""A job starts: which files each of 1,024 ranks opens."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from tests.corpora.small import written
from tests.scale import scaled

RANKS, DATASETS, SHARDS, TOKENS, FIRST = 1024, 4, 10, 1700, 4

_opened = []


def _audit(event, arguments):
    if event == "open":
        _opened.append(str(arguments[0]))


sys.addaudithook(_audit)  # stays for good


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("storm")
    for name in range(DATASETS):
        written(folder / f"d{name}", *[[(range(TOKENS),)]] * SHARDS)
    datasets = {f"d{name}": {"path": str(folder / f"d{name}"), "weight": name + 1} for name in range(DATASETS)}
    return {"seq_len": 16, "datasets": datasets, "loader": {"num_threads": 1, "prefetch_batches": 0}}


def test_a_rank_opens_manifests_and_the_shards_that_it_reads(config):
    folder = Path(config["datasets"]["d0"]["path"]).parent
    for rank in range(0, RANKS, scaled(64, 1)):
        _opened.clear()
        loader = cl.make_dataloader(config, micro_batch_size=2, dp_rank=rank, dp_size=RANKS)
        for _, _batch in zip(range(FIRST), loader, strict=False):
            pass
        loader.close()
        shards = set()
        for step in range(FIRST):
            members, _, windows = loader.blend.order.sample_many(loader.plan.micro_batches(step, rank)[0])
            first = np.stack([windows * 16, windows * 16 + 16]) // TOKENS
            shards |= {(int(member), int(shard)) for row in first for member, shard in zip(members, row, strict=True)}
        opened = Counter(path for path in _opened if path.startswith(str(folder)))
        assert set(opened.values()) == {1}, "each file is opened once"
        manifests = sum(path.endswith("manifest.json") for path in opened)
        assert (manifests, len(opened) - manifests) == (DATASETS, len(shards)), "of what the rank reads first"
