"""SampleDataset in torch's DataLoader and in torchdata's StatefulDataLoader."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.raises import raises


def same(a, b):
    assert sorted(a) == sorted(b)
    for name in a:
        assert a[name] == b[name] if name == "max_seqlen" else torch.equal(a[name], b[name]), name


@pytest.fixture
def wanted(config):
    """The first batches as the loader gives them."""
    with cl.make_dataloader(config, micro_batch_size=4) as loader:
        return list(itertools.islice(loader, 6))


@pytest.mark.parametrize("start", [None, "fork", "spawn"])
def test_in_a_dataloader_with_workers(config, wanted, start):
    data = cl.SampleDataset(config, num_samples=24)
    if start == "fork":
        _ = data[0]  # files are open before the fork
    loader = DataLoader(
        data, batch_size=4, sampler=cl.EpochSampler(24, 1, 0), collate_fn=cl.collate_fn,
        num_workers={None: 0, "fork": 2, "spawn": 1}[start], multiprocessing_context=start,
    )  # fmt: skip
    found = list(loader)
    assert len(found) == 6
    for a, b in zip(found, wanted, strict=True):
        same(a, b)


def test_a_sampler_that_shuffles_again_is_a_warning(config, caplog):
    sharing = torch.utils.data.DistributedSampler

    def read(data, size, sampler=None):
        for _ in range(3):
            list(DataLoader(data, batch_size=size, sampler=sampler, collate_fn=cl.collate_fn))
        return "a sampler shuffles what is shuffled already" in caplog.text

    data = cl.SampleDataset(config, num_samples=301)
    for sampler in (cl.EpochSampler(301, 3, 1), sharing(data, 3, 1, shuffle=False), None):
        assert not read(data, 4, sampler)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(data.__getitem__, range(300)))
    assert not read(data, 4)
    for size in (1, 8):
        assert read(cl.SampleDataset(config, num_samples=301), size, sharing(data, 3, 1))  # as DeepSpeed does
        caplog.clear()
    config["order"] = "sequential"
    del config["phases"]
    for dataset in config["datasets"].values():
        dataset.pop("weight", None)
    whole = cl.SampleDataset(config)
    assert not read(whole, 8, torch.utils.data.RandomSampler(whole))


def test_with_the_default_collate_function(config, wanted):
    found = list(DataLoader(cl.SampleDataset(config, num_samples=24), batch_size=4))
    for a, b in zip(found, wanted, strict=True):
        same(a, {name: value for name, value in b.items() if name not in ("cu_seqlens", "max_seqlen")})


def test_ragged_samples_carry_their_own_offsets(config):
    config["tracks"]["concepts"]["layout"] = "ragged"
    data = cl.SampleDataset(config)
    rows = data.__getitems__([5, 9, 2])
    slots = rows.layout.tracks[0].max_spans
    for k, index in enumerate([5, 9, 2]):
        alone = data[index]
        same(rows[k], alone)
        a, b = rows.batch["concepts_offsets"][[k * slots, (k + 1) * slots]].tolist()
        assert alone["concepts_values"].tolist() == rows.batch["concepts_values"][a:b].tolist()


def test_from_threads(config):
    data = cl.SampleDataset(config)
    alone = [data[k] for k in range(64)]
    with ThreadPoolExecutor(8) as pool:
        for a, b in zip(pool.map(data.__getitem__, range(64)), alone, strict=True):
            same(a, b)


@pytest.mark.parametrize("workers", [0, 2])
def test_in_a_stateful_dataloader(config, wanted, workers):
    def make():
        return StatefulDataLoader(
            cl.SampleDataset(config, num_samples=24), batch_size=4, sampler=cl.EpochSampler(24, 1, 0),
            collate_fn=cl.collate_fn, num_workers=workers,
        )  # fmt: skip

    loader = make()
    found = list(itertools.islice(loader, 2))
    state = loader.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    found += list(resumed)
    assert len(found) == 6
    for a, b in zip(found, wanted, strict=True):
        same(a, b)


def test_what_is_no_index_of_a_sample_raises(config):
    data = cl.SampleDataset(config)
    for index in (-1, 1.5, True, "1", None, slice(2), [1, 2], torch.tensor(1.5), 2**64):
        with raises(ConfigError, "sample index"):
            data[index]
    with raises(ConfigError, "sample index", "1.5"):
        data.__getitems__([0, 1.5])
    for index in (np.int64(1), np.uint32(1), torch.tensor(1)):
        same(data[index], data[1])
