"""The permutation against its definition, its inverse, and the statistics of numpy's own shuffle."""

import copy
import pickle
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.order import reference
from tests.raises import raises

KEYS = st.integers(0, 2**64 - 1)
ALL_SMALL = [*range(1, 301), *sorted({2**k + d for k in range(1, 21) for d in (-1, 0, 1)} - set(range(301)))]


def test_bijective_exhaustively() -> None:
    for n in ALL_SMALL:
        image = cl.adapters.Permutation(n, key=n).forward_many(np.arange(n))
        assert np.array_equal(np.sort(image), np.arange(n)), n
        assert np.array_equal(cl.adapters.Permutation(n, key=n).inverse_many(image), np.arange(n)), n


@given(n=st.integers(1, 2**63) | st.integers(1, 3000), key=KEYS, data=st.data())
def test_kernel_equals_reference_and_inverse(n: int, key: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, n - 1))
    p = cl.adapters.Permutation(n, key)
    j = p.forward(i)
    mixed = reference.mix64(key)
    assert 0 <= j < n
    assert j == reference.permute(i, n, mixed) == int(p.forward_many([i])[0])
    assert p.inverse(j) == i == reference.unpermute(j, n, mixed) == int(p.inverse_many([j])[0])


def test_single_positions_by_many_threads() -> None:
    n, found = 10**12, {}
    p = cl.adapters.Permutation(n, key=3)

    def work(first: int) -> None:
        for i in range(first, n, n // 20000):
            j = p.forward(i)
            assert p.inverse(j) == i
            found[i] = j

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    switches = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switches)
    positions = np.array([*found])
    assert len(found) == 80000
    assert p.forward_many(positions).tolist() == [*found.values()]
    for other in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p)):
        assert other.forward(12345) == p.forward(12345)


@pytest.mark.parametrize("n", [500, 5000])
def test_shape_of_the_input_is_kept_and_dtypes_are_checked(n: int) -> None:
    p = cl.adapters.Permutation(n, 3)
    grid = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert p.forward_many(grid).shape == (3, 4)
    assert p.forward_many(grid).dtype == np.uint64
    assert p.forward_many(np.array(5)).shape == ()
    assert p.forward_many(np.array(5)) == p.forward(5)
    assert [found.shape for found in cl.Mixture([n]).sample_many(np.array(5))] == [()] * 3
    with raises(ConfigError, expected="integers"):
        p.forward_many(np.array([0.5]))


@pytest.mark.parametrize(("n", "key"), [(0, 0), (-1, 0), (2**63 + 1, 0), (5, -1), (5, 2**64)])
def test_arguments_out_of_range_are_refused(n: int, key: int) -> None:
    with pytest.raises(ConfigError, match="expected"):
        cl.adapters.Permutation(n, key)


@pytest.mark.parametrize("n", [5, 5000])
@pytest.mark.parametrize("position", [-1, 5000])
def test_positions_out_of_range_are_refused(n: int, position: int) -> None:
    p = cl.adapters.Permutation(n)
    for call in (p.forward, p.inverse, lambda x: p.forward_many([x]), lambda x: p.inverse_many(np.array([x]))):
        with pytest.raises(ConfigError, match=f"found {position}"):
            call(position)


def test_the_function_that_the_error_names_makes_a_key() -> None:
    with raises(ConfigError, fix="conceptloader.adapters.derive_key"):
        cl.adapters.Permutation(5, 2**64)
    key = cl.adapters.derive_key(-3, "my order", 2**70)
    assert cl.adapters.Permutation(5, key).key == key == cl.adapters.derive_key(-3, "my order", 2**70)
    assert cl.adapters.derive_key(0, np.int64(1)) == cl.adapters.derive_key(0, 1) != cl.adapters.derive_key(0, "1")
    for part in (1.0, True, None):
        with raises(ConfigError, "derive_key", "the part"):
            cl.adapters.derive_key(0, part)  # type: ignore[arg-type]
