"""The permutation of an epoch against its definition, its inverse, and the statistics of numpy's own shuffle."""

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.order import plain
from tests.raises import raises

ALL_SMALL = [*range(1, 301), *sorted({2**k + d for k in range(1, 21) for d in (-1, 0, 1)} - set(range(301)))]


def test_bijective_exhaustively():
    for n in ALL_SMALL:
        order = cl.Mixture([n], seed=n)
        image = order.sample_many(np.arange(n))[2]
        assert np.array_equal(np.sort(image), np.arange(n)), n
        assert np.array_equal(order.indices_of_windows(0, 0, image), np.arange(n)), n


def test_single_positions_by_many_threads():
    n, order, switches = 10**12, cl.Mixture([10**12], seed=3), sys.getswitchinterval()
    positions = range(0, n, n // 2000)

    def window(i):
        found = order.sample(i)
        assert order.index_of_window(*found) == i
        return found[2]

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            windows = [*threads.map(window, positions)]
    finally:
        sys.setswitchinterval(switches)
    for other in (order, pickle.loads(pickle.dumps(order)), copy.deepcopy(order)):
        assert other.sample_many([*positions])[2].tolist() == windows


def test_arrays_of_any_memory_and_shape():
    order = cl.Mixture([5000], seed=3)
    expected = order.sample_many(np.arange(5000))[2]
    offset = np.zeros(40_001, np.uint8)[1:].view(np.uint64)
    offset[:] = range(5000)
    fixed = np.arange(5000, dtype=np.uint64)
    fixed.flags.writeable = False
    for array in (offset, fixed, fixed.astype(">u8"), fixed.reshape(50, 100), np.repeat(fixed, 2)[::2]):
        found = order.sample_many(array)[2]
        assert found.shape == array.shape
        assert found.ravel().tolist() == expected.tolist()
    assert [found.shape for found in order.sample_many(np.array(5))] == [()] * 3


@pytest.mark.parametrize("n", [5, 5000])
def test_positions_out_of_range_are_refused(n):
    order = cl.Mixture([n])
    for position in (-1, 2**63):
        with pytest.raises(ConfigError, match=f"found {position}"):
            order.sample(position)
    for dataset, epoch, window in ((1, 0, 0), (-1, 0, 0), (0, -1, 0), (0, 0, n), (0, 0, -1)):
        with raises(ConfigError, expected="a dataset from 0 to 0"):
            order.index_of_window(dataset, epoch, window)
    with raises(ConfigError, found="-1"):
        order.counts(-1)
    for window in (-1, n):
        with pytest.raises(ConfigError, match=f"found {window}"):
            order.indices_of_windows(0, 0, [window])
    with raises(ConfigError, expected="integers"):
        order.sample_many(np.array([0.5]))


def test_keys_are_of_integers_and_names():
    assert cl.adapters.derive_key(-3, "my order", 2**70) == plain.derive_key(-3, "my order", 2**70)
    for part in (1.0, True, None):
        with raises(ConfigError, "derive_key", "the part"):
            cl.adapters.derive_key(0, part)
