"""Values at the edge of what is allowed, which random mutants of the order survived without."""

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.raises import raises


def test_a_mixture_has_no_dataset_beyond_its_last():
    order = cl.Mixture(sizes=[3, 5], names=["a", "b"], weights=[1, 1])
    assert order.counts(0) == [0, 0]
    assert order.index_of_window(1, 0, 4) is not None
    for dataset, epoch, window in ((2, 0, 0), (-1, 0, 0), (0, -1, 0), (0, 0, 3), (0, 0, -1)):
        with raises(ConfigError, expected="a dataset from 0 to 1"):
            order.index_of_window(dataset, epoch, window)
    with raises(ConfigError, found="-1"):
        order.counts(-1)
