"""Values at the edge of what is allowed, which random mutants of the order survived without."""

import pytest

import conceptloader as cl
from conceptloader.base.checks import MAX_COUNT, as_count
from conceptloader.errors import ConfigError
from tests.raises import raises


def test_counts() -> None:
    assert as_count(1, "n") == 1
    assert as_count(MAX_COUNT, "n") == MAX_COUNT
    assert as_count(0, "n", 0) == 0
    with raises(ConfigError, expected="from 1 to"):
        as_count(0, "n")
    for value, least in ((0, 1), (MAX_COUNT + 1, 1), (-1, 0), (True, 1), (True, 0), (1.0, 1)):
        with pytest.raises(ConfigError, match=f"from {least} to"):
            as_count(value, "n", least)


def test_a_mixture_has_no_dataset_beyond_its_last() -> None:
    order = cl.Mixture(sizes=[3, 5], names=["a", "b"], weights=[1, 1])
    assert order.counts(0) == [0, 0]
    assert order.index_of_window(1, 0, 4) is not None
    for dataset, epoch, window in ((2, 0, 0), (-1, 0, 0), (0, -1, 0), (0, 0, 3), (0, 0, -1)):
        with raises(ConfigError, expected="a dataset from 0 to 1"):
            order.index_of_window(dataset, epoch, window)
    with raises(ConfigError, found="-1"):
        order.counts(-1)
