"""Many threads and processes on one dataset, with far fewer descriptors than files."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.format.read.files import Files
from conceptloader.storage.handles import Handles
from conceptloader.storage.source import LocalFiles
from tests.corpora.small import written

SHARDS, TOKENS = 40, 50


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory):
    """Token t of the dataset is t; the record of token t is t, too."""
    shards = (
        [(range(first, first + TOKENS), {"a": [(i, i + 1, [first + i]) for i in range(TOKENS)]})]
        for first in range(0, SHARDS * TOKENS, TOKENS)
    )
    return written(tmp_path_factory.mktemp("threads") / "ds", *shards, tracks={"a": {"encoding": "spans"}})


def check(ds, seed, count):
    """Reads windows at random positions. Returns: how many."""
    windows = ds.windows(70)
    for i in np.random.default_rng(seed).integers(0, len(windows), count).tolist():
        expected = list(range(70 * i, 70 * i + 71))
        sample = windows[i]
        assert sample["tokens"].tolist() == expected
        assert sample["a"].values.tolist() == expected
        assert sample["documents"].ids.tolist() == list(range(expected[0] // TOKENS, expected[-1] // TOKENS + 1))
    return count


class Counted(Handles):
    """With the largest number of files that were open at once."""

    most = 0

    def open(self, opener):
        found = super().open(opener)
        self.most = max(self.most, self.count)
        return found


@pytest.mark.parametrize("capacity", [1, 3])
def test_evicted_descriptors_never_give_wrong_bytes(many_shards, capacity):
    ds = cl.open_dataset(many_shards)
    handles = Counted(capacity)
    ds.files = Files(ds.manifest, ds.files.roots, LocalFiles(handles=handles))
    threads = 8
    with ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(lambda seed: check(ds, seed, 40), range(threads))) == 320
    assert handles.count <= capacity
    assert handles.most <= 2 * capacity + threads
    ds.close()
    assert handles.count == 0


def test_pickling_keeps_the_options(many_shards):
    ds = cl.open_dataset(many_shards, roots=[many_shards.parent], verify_files=False)
    again = pickle.loads(pickle.dumps(ds))
    assert again.__reduce__() == ds.__reduce__()
    assert again.stream_fingerprint == ds.stream_fingerprint
    windows = pickle.loads(pickle.dumps(ds.windows(9)))
    assert windows[3]["tokens"].tolist() == list(range(27, 37))
