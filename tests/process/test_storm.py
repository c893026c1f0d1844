"""A job starts: which files each of 1,024 ranks opens."""

import sys
from collections import Counter
from itertools import islice

import numpy as np

import conceptloader as cl
from tests.corpora.small import written
from tests.scale import scaled

RANKS, DATASETS, SHARDS, TOKENS, FIRST = 1024, 4, 10, 1700, 4

_opened = []


def _audit(event, arguments):
    if event == "open":
        _opened.append(str(arguments[0]))


sys.addaudithook(_audit)  # stays for good


def test_a_rank_opens_manifests_and_the_shards_that_it_reads(tmp_path):
    paths = {f"d{k}": written(tmp_path / f"d{k}", *[[(range(TOKENS),)]] * SHARDS) for k in range(DATASETS)}
    datasets = {name: {"path": str(path), "weight": k + 1} for k, (name, path) in enumerate(paths.items())}
    config = {"seq_len": 16, "datasets": datasets, "loader": {"num_threads": 1, "prefetch_batches": 0}}
    for rank in range(0, RANKS, scaled(64, 1)):
        _opened.clear()
        with cl.make_dataloader(config, micro_batch_size=2, dp_rank=rank, dp_size=RANKS) as loader:
            samples = np.concatenate([batch["sample_index"] for batch in islice(loader, FIRST)])
        members, _, windows = loader.blend.order.sample_many(samples)
        read = zip(members, windows * 16, strict=True)
        shards = {(member, (token + more) // TOKENS) for member, token in read for more in (0, 16)}
        opened = Counter(path for path in _opened if path.startswith(str(tmp_path)))
        assert set(opened.values()) == {1}, "each file is opened once"
        manifests = sum(path.endswith("manifest.json") for path in opened)
        assert (manifests, len(opened) - manifests) == (DATASETS, len(shards)), "of what the rank reads first"
