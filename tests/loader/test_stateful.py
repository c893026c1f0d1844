"""Samplers in torchdata's StatefulDataLoader, stopped on some ranks and resumed on others."""

import itertools
import json
from collections import Counter

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import conceptloader as cl
from conceptloader.errors import ResumeError
from tests.raises import raises

SIZE = 240


class Numbers:
    """A dataset that gives the index asked for."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index


def loader_of(workers=0):
    return StatefulDataLoader(Numbers(), batch_size=5, sampler=cl.EpochSampler(SIZE, 1, 0), num_workers=workers)


def run(loader, batches=None):
    """Indices in the next batches, and the state after them."""
    seen = [k for batch in itertools.islice(loader, batches) for k in batch.tolist()]
    return seen, json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 4), (3, 2), (4, 1), (2, 7), (7, 3)])
def test_every_position_may_be_gone_on_from(before, after, drop_last):
    """Also where they do not divide: an epoch of 37 samples, left after each."""
    for given in range(37 // before + 1):
        ranks = [iter(cl.EpochSampler(37, before, rank, drop_last)) for rank in range(before)]
        first = [index for iterator in ranks for index in itertools.islice(iterator, given)]
        states = [iterator.state_dict() for iterator in ranks]
        assert all(state == states[0] for state in states)
        parts = []
        for rank in range(after):
            sampler = cl.EpochSampler(37, after, rank, drop_last)
            iterator = iter(sampler)
            assert len(sampler) == len(list(iter(sampler)))
            iterator.load_state_dict(states[0])
            parts.append(list(iterator))
        assert len({len(part) for part in parts}) == 1
        counts = Counter(first + [index for part in parts for index in part])
        left = 37 - len(first)
        if drop_last:
            assert set(counts.values()) <= {1}
            assert sum(counts.values()) == 37 - left % after
        else:
            assert set(counts) == set(range(37))
            assert sum(counts.values()) == 37 + -left % after


def test_the_state_of_an_epoch_of_another_size_is_refused():
    saved, other = cl.EpochSampler(240, 2, 0), cl.EpochSampler(241, 2, 0)
    for one, mine in ((saved, other), (iter(saved), iter(other))):
        with raises(ResumeError, path="epoch_size", found="241", expected="240, as saved", fix="num_samples=240"):
            mine.load_state_dict(one.state_dict())


@pytest.mark.parametrize("workers", [0, 2])
def test_saved_between_epochs_the_next_one_follows(workers):
    """set_epoch comes after load_state_dict, and before torchdata hands the state on."""

    def of_epoch(e, state=None):
        loader = loader_of(workers)
        if state is not None:
            loader.load_state_dict(state)
        loader.sampler.set_epoch(e)
        return run(loader)

    _, finished = of_epoch(0)
    wanted, _ = of_epoch(1)
    assert of_epoch(1, finished)[0] == wanted


def test_set_epoch_and_a_state_within_another_epoch(caplog):
    loader = loader_of()
    loader.sampler.set_epoch(1)
    _, state = run(loader, 4)

    def resumed(e):
        loader = loader_of()
        loader.load_state_dict(state)
        if e is not None:
            loader.sampler.set_epoch(e)
        return run(loader)[0]

    rest = [*range(SIZE + 20, 2 * SIZE)]
    assert resumed(None) == resumed(1) == rest
    assert not caplog.records
    assert resumed(2) == [*range(2 * SIZE, 3 * SIZE)]
    assert "leaves 220 samples of epoch 1 unread" in caplog.text
    with raises(ResumeError, "sampler iterator state", fix="call set_epoch(1)"):
        resumed(0)
