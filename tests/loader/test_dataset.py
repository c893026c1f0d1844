"""SampleDataset in torch's DataLoader and in torchdata's StatefulDataLoader."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import conceptloader as cl
from conceptloader.errors import ConfigError, ResumeError
from tests.batch.compare import assert_same
from tests.raises import raises


@pytest.fixture
def sampled(config):
    """Without the arrays that describe whole batches."""
    config["outputs"]["cu_seqlens"] = False
    return config


@pytest.fixture
def wanted(config):
    """The first batches as the loader gives them."""
    with cl.make_dataloader(config, micro_batch_size=4) as loader:
        return list(itertools.islice(loader, 6))


@pytest.mark.parametrize("start", [None, "fork", "spawn"])
def test_in_a_dataloader_with_workers(config, wanted, start):
    data = cl.SampleDataset(config, num_samples=24)
    if start == "fork":
        data.__getitems__([0])  # files are open before the fork
    loader = DataLoader(
        data, batch_size=4, sampler=cl.EpochSampler(24, 1, 0), collate_fn=cl.collate_fn,
        num_workers={None: 0, "fork": 2, "spawn": 1}[start], multiprocessing_context=start,
    )  # fmt: skip
    found = list(loader)
    assert len(found) == 6
    for a, b in zip(found, wanted, strict=True):
        assert_same(a, b)


def test_a_sampler_that_shuffles_again_is_a_warning(sampled, caplog):
    """As DeepSpeed's does."""
    for again in (False, True):
        data = cl.SampleDataset(sampled, num_samples=301)
        sampler = torch.utils.data.DistributedSampler(data, 3, 1, shuffle=again)
        for _ in range(3):
            list(DataLoader(data, batch_size=8, sampler=sampler, collate_fn=cl.collate_fn))
        assert ("a sampler shuffles what is shuffled already" in caplog.text) == again


def test_with_the_default_collate_function(config, wanted):
    with raises(ConfigError, "outputs.cu_seqlens", fix="collate_fn=conceptloader.collate_fn"):
        next(iter(DataLoader(cl.SampleDataset(config, num_samples=24), batch_size=4)))
    config["outputs"]["cu_seqlens"] = False
    for a, b in zip(DataLoader(cl.SampleDataset(config, num_samples=24), batch_size=4), wanted, strict=True):
        assert_same(a, {name: value for name, value in b.items() if name not in ("cu_seqlens", "max_seqlen")})


def test_ragged_samples_carry_their_own_offsets(sampled):
    config = sampled
    config["tracks"]["concepts"]["layout"] = "ragged"
    data = cl.SampleDataset(config)
    rows = data.__getitems__([5, 9, 2])
    slots = rows.layout.tracks[0].max_spans
    for k, index in enumerate([5, 9, 2]):
        alone = data[index]
        assert_same(rows[k], alone)
        a, b = rows.batch["concepts_offsets"][[k * slots, (k + 1) * slots]].tolist()
        assert alone["concepts_values"].tolist() == rows.batch["concepts_values"][a:b].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_other_samples_is_refused(config, workers):
    def make(config, **options):
        data = cl.SampleDataset(config, num_samples=24, **options)
        return StatefulDataLoader(
            data, batch_size=4, sampler=cl.EpochSampler(24, 1, 0), collate_fn=cl.collate_fn, num_workers=workers
        )

    loader = make(config)
    list(itertools.islice(loader, 2))
    state = loader.state_dict()
    resumed = make({**config, "seed": 77})
    resumed.load_state_dict(state)
    # In a worker torch raises it anew, as a RuntimeError.
    with pytest.raises(RuntimeError if workers else ResumeError, match="changed since the checkpoint"):
        next(iter(resumed))
    allowed = make({**config, "seed": 77}, allow_changed=["seed"])
    allowed.load_state_dict(state)
    assert next(iter(allowed))["sample_index"].tolist() == [8, 9, 10, 11]


def test_it_is_a_sequence(config):
    config["outputs"] = {"sample_index": True}
    for data in (cl.SampleDataset(config, num_samples=10), cl.GrainSource(config, num_samples=10)):
        assert [int(one["sample_index"]) for one in data] == [*range(10)]
        assert int(data[-3]["sample_index"]) == 7
        for beyond in (10, 4000, -11):
            with pytest.raises(IndexError):
                data[beyond]
    assert [int(one["sample_index"]) for one in cl.SampleDataset(config, num_samples=10)[-2:]] == [8, 9]
    assert cl.SampleDataset(config, num_samples=10).__getitems__([25]).batch["sample_index"].tolist() == [25]


def test_what_is_no_index_of_a_sample_raises(config):
    config["outputs"]["cu_seqlens"] = False
    data = cl.SampleDataset(config)
    for index in (1.5, True, "1", None, [1, 2], torch.tensor(1.5)):
        with raises(ConfigError, "sample index"):
            data[index]
    with raises(ConfigError, "sample index", "1.5"):
        data.__getitems__([0, 1.5])
    for index in (np.int64(1), np.uint32(1), torch.tensor(1)):
        assert_same(data[index], data[1])
