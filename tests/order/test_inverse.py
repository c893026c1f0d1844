"""The inverse for many windows equals that of the reference, one after the other."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.kernels.order import climb
from conceptloader.order import reference
from conceptloader.order.mixture import Mixture
from conceptloader.order.phases import Phase
from conceptloader.order.sequential import Sequential
from conceptloader.order.skips import Skip

MIXTURES = {
    "phases": Mixture(
        sizes=[50, 1030, 3],
        names=["a", "b", "c"],
        seed=3,
        block=16,
        phases=[
            Phase(start=0, weights={"a": 0.7, "b": 0.3}),
            Phase(start=133, weights={"b": 1, "c": 0.01}),
            Phase(start=700, weights={"a": 5, "b": 2, "c": 1}),
        ],
        skips=[Skip(at=60, count=21), Skip(at=61, count=1), Skip(at=650, count=300)],
    ),
    "one": Mixture(sizes=[77], seed=1, block=8),
    "strict": Mixture(sizes=[2000, 5, 9, 1], seed=1, block=1, weights=[9.0, 0.2, 1, 3]),
    "stored order": Mixture(sizes=[40, 30], seed=1, shuffle=False),
    "sequential": Sequential([5, 0, 9], ["b", "a", "c"]),
}


@cache
def plain_phases(order: Mixture) -> list[reference.PhaseOrder]:
    given = [(phase.start, {name: int(w) for name, w in phase.weights.items()}) for phase in order.phases]
    return reference.order_phases(given, order.names, order.seed, order.block)


def plainly(order: Mixture | Sequential, dataset: int, epoch: int, window: int) -> int | None:
    if not isinstance(order, Mixture):
        return order.index_of_window(dataset, epoch, window)
    phases = plain_phases(order)
    key, size = reference.dataset_key(order.seed, order.names[dataset]), order.sizes[dataset]
    draw = reference.draw_of(epoch, window, size, key) if order.shuffle else epoch * size + window
    g = reference.position(phases, order.block, dataset, draw)
    return None if g is None else reference.trainer_index(g, [(one.at, one.count) for one in order.skips.skips])


@pytest.mark.parametrize("name", MIXTURES)
def test_many_windows_equal_one_after_the_other(name: str) -> None:
    order = MIXTURES[name]
    missing = 0
    for dataset, size in enumerate(order.sizes):
        for epoch in (0, 1, 2):
            windows = np.random.default_rng(epoch).permutation(size)[:400].astype(np.uint64)
            expected = [plainly(order, dataset, epoch, w) for w in windows.tolist()]
            found = order.indices_of_windows(dataset, epoch, windows)
            assert found.dtype == np.int64
            assert [order.index_of_window(dataset, epoch, w) for w in windows[:20].tolist()] == expected[:20]
            assert found.tolist() == [-1 if one is None else one for one in expected]
            assert order.indices_of_windows(dataset, epoch, windows[None, ::-1]).tolist() == [found[::-1].tolist()]
            missing += expected.count(None)
    assert missing or name in ("one", "strict", "stored order")


def test_far_out_and_of_a_large_dataset() -> None:
    order = Mixture(sizes=[2**62, 10**9], weights=[0.999, 0.001], seed=9, skips=[Skip(at=5, count=2**40)])
    samples = np.array([0, 4, 5, 10**15, 2**55, 2**61 + 12345], np.uint64)
    datasets, epochs, windows = order.sample_many(samples)
    for k in range(len(samples)):
        found = order.indices_of_windows(int(datasets[k]), int(epochs[k]), windows[k : k + 1])
        assert found.tolist() == [int(samples[k])]


@given(st.integers(1, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_division_of_two_words(divisor: int, low: int, high: int) -> None:
    """By `climb`, over one level of a tree."""
    high, out = high % divisor, np.zeros(1, np.uint64)
    climb(*(np.array([word], np.uint64) for word in (high, divisor, low)), out)
    assert int(out[0]) == (high << 64 | low) // divisor
