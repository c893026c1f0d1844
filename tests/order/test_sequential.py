import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.errors import ConfigError
from conceptloader.order.mixture import Sequential
from tests.raises import raises


@given(
    st.dictionaries(st.text("abc", min_size=1), st.integers(0, 9), min_size=1).filter(lambda some: any(some.values())),
    st.randoms(),
)
def test_equals_a_list(windows, random):
    names = random.sample(sorted(windows), len(windows))
    order = Sequential([windows[name] for name in names], names)
    expected = [(names.index(name), 0, w) for name in sorted(windows) for w in range(windows[name])]
    assert order.num_samples == len(expected)
    assert [order.sample(g) for g in range(len(expected))] == expected
    assert list(zip(*order.sample_many(np.arange(len(expected))), strict=True)) == expected
    for g, (dataset, epoch, window) in enumerate(expected):
        assert order.index_of_window(dataset, epoch, window) == order.indices_of_windows(dataset, epoch, [window]) == g
        assert order.counts(g) == [sum(d == k for d, _, _ in expected[:g]) for k in range(len(names))]
    order.check_run(len(expected))


def test_beyond_the_end():
    order = Sequential([3, 2, 0], ["b", "a", "c"])
    assert order.index_of_window(0, 1, 0) is order.index_of_window(1, 1, 0) is None
    assert order.indices_of_windows(0, 1, [0, 2]).tolist() == [-1, -1]
    assert order.counts(9) == order.counts(5) == [3, 2, 0]
    for window in (-1, 3):
        with raises(ConfigError, "window", window):
            order.indices_of_windows(0, 0, [window])
        with raises(ConfigError, "window", f"dataset {window}"):
            order.index_of_window(window, 0, 0)
    for sample in (-1, 5):
        with raises(ConfigError, "sample index", sample):
            order.sample_many([0, sample])
    with raises(ConfigError, expected="at most 5"):
        order.check_run(6)
    for sizes, names in (([1, 2], ["a", "a"]), ([-1], ["a"]), ([0], ["a"])):
        with raises(ConfigError):
            Sequential(sizes, names)
