"""The mixture against its definition: exactly once and in order at every prefix, near its weights, invertible."""

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.kernels.order import climb
from conceptloader.order import reference
from conceptloader.order.segments import Segment
from conceptloader.order.tree import build_tree
from tests.order import plain
from tests.raises import raises


class Given(cl.Mixture):
    """A mixture that knows its arguments."""

    def __init__(self, *, segments: list[Segment], **options: Any) -> None:
        super().__init__(segments=segments, **options)
        self.given = sorted(segments, key=lambda one: one.at)


@st.composite
def mixtures(draw: st.DrawFn, most: int, max_skips: int = 3) -> Given:
    """Of datasets of up to `most` windows, with changes of weights and skips."""
    sizes = draw(st.lists(st.integers(1, most) | st.integers(1, 60), min_size=1, max_size=7))
    names = draw(st.permutations([f"dataset-{k}" for k in range(len(sizes))]))
    weights = st.dictionaries(st.sampled_from(names), st.integers(1, 1000) | st.floats(0.01, 10), min_size=1)
    starts = draw(st.sets(st.integers(1, 400), max_size=3))
    skips = st.builds(lambda at, count: Segment(at=at, skip=count), st.integers(0, 400), st.integers(1, 100))
    return Given(
        sizes=sizes,
        names=names,
        segments=[
            Segment(at=0, weights=draw(weights)),
            *draw(st.lists(skips, max_size=max_skips)),
            *(Segment(at=start, weights=draw(weights)) for start in sorted(starts)),
        ],
        seed=draw(st.integers(-5, 1 << 64)),
        block=draw(st.sampled_from([1, 2, 7, 64])),
        shuffle=draw(st.integers(0, 4)) > 0,
    )


# Sizes on both sides of that up to which windows are shuffled by a table.
MIXTURES = st.sampled_from([1100, 1 << 40]).flatmap(mixtures)
WITHOUT_SKIPS = mixtures(1 << 40, max_skips=0)


class Plain:
    """A mixture by the plain functions of tests/order/plain.py, from its arguments alone."""

    def __init__(self, m: Given) -> None:
        self.skips = [(one.at, one.skip) for one in m.given if one.skip]
        given = [
            (
                one.at and one.at + sum(count for at, count in self.skips if at <= one.at),
                reference.smallest_integers({k: Fraction(w) for k, w in one.weights.items()}),
            )
            for one in m.given
            if one.weights
        ]
        self.m, self.phases = m, plain.order_phases(given, m.names, m.seed, m.block)
        self.keys = [reference.dataset_key(m.seed, name) for name in m.names]

    def sample(self, t: int) -> tuple[int, int, int, int]:
        """(dataset, draw, epoch, window)."""
        dataset, draw = plain.locate(self.phases, self.m.block, plain.global_index(t, self.skips))
        size = self.m.sizes[dataset]
        shuffled = plain.window_of(draw, size, self.keys[dataset])
        return dataset, draw, *(shuffled if self.m.shuffle else divmod(draw, size))

    def index(self, dataset: int, epoch: int, window: int) -> int:
        """The inverse; -1 for what no sample is."""
        size = self.m.sizes[dataset]
        draw = reference.draw_of(epoch, window, size, self.keys[dataset]) if self.m.shuffle else epoch * size + window
        g = plain.position(self.phases, self.m.block, dataset, draw)
        t = None if g is None else plain.trainer_index(g, self.skips)
        return -1 if t is None else t


@given(m=MIXTURES, ts=st.lists(st.integers(0, 500) | st.integers(0, 2**50), min_size=1, max_size=20))
def test_kernels_equal_the_reference(m: Given, ts: list[int]) -> None:
    (datasets, draws), (_, epochs, windows), simple = m.locate_many(ts), m.sample_many(ts), Plain(m)
    expected = [simple.sample(t) for t in ts]
    for t, (dataset, _, epoch, window) in zip(ts, expected, strict=True):
        assert m.index_of_window(dataset, epoch, window) == t == simple.index(dataset, epoch, window)
    assert expected == list(zip(datasets.tolist(), draws.tolist(), epochs.tolist(), windows.tolist(), strict=True))


@given(m=MIXTURES, data=st.data())
def test_the_inverse_of_any_windows_equals_the_reference(m: Given, data: st.DataObject) -> None:
    """Also of those that a skip passes over, and of datasets that have left or never take part."""
    dataset, epoch, simple = data.draw(st.integers(0, len(m.sizes) - 1)), data.draw(st.integers(0, 2)), Plain(m)
    last = m.sizes[dataset] - 1
    windows = data.draw(st.lists(st.integers(0, min(last, 99)) | st.integers(0, last), min_size=1, max_size=30))
    found, expected = m.indices_of_windows(dataset, epoch, windows), [simple.index(dataset, epoch, w) for w in windows]
    assert found.tolist() == expected
    assert [m.index_of_window(dataset, epoch, w) for w in windows[:3]] == [None if t < 0 else t for t in expected[:3]]


@given(st.integers(1, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_division_of_two_words(divisor: int, low: int, high: int) -> None:
    """By `climb`, over one level of a tree."""
    high, out = high % divisor, np.zeros(1, np.uint64)
    climb(*(np.array([word], np.uint64) for word in (high, divisor, low)), out)
    assert int(out[0]) == (high << 64 | low) // divisor


@given(skips=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=5))
def test_skips_equal_the_reference(skips: list[tuple[int, int]]) -> None:
    segments = [Segment(at=0, weights={"0": 1}), *(Segment(at=at, skip=count) for at, count in skips)]
    m = cl.Mixture([1000], segments=segments, shuffle=False)
    expected = [plain.global_index(t, skips) for t in range(200)]
    assert m.sample_many(np.arange(200))[2].tolist() == expected
    read = {g: t for t, g in enumerate(expected)}
    found = m.indices_of_windows(0, 0, np.arange(200)).tolist()
    for g in range(200):
        assert plain.trainer_index(g, skips) == read.get(g)
        assert found[g] == read.get(g, -1)


@given(m=WITHOUT_SKIPS)
def test_every_draw_once_and_in_order_at_every_prefix(m: cl.Mixture) -> None:
    datasets, draws = m.locate_many(np.arange(600))
    counts = [0] * len(m.sizes)
    for t, (dataset, draw) in enumerate(zip(datasets, draws, strict=True)):
        if t % 29 == 0:
            assert m.counts(t) == counts
        assert draw == counts[dataset]
        counts[dataset] += 1


@given(m=MIXTURES, data=st.data())
def test_the_sequence_of_datasets_in_the_call_does_not_matter(m: Given, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(m.sizes))))
    segments = [replace(one, weights=dict(reversed(one.weights.items()))) for one in m.given]
    other = cl.Mixture([m.sizes[k] for k in order], names=[m.names[k] for k in order], seed=m.seed, block=m.block,
                       segments=segments, shuffle=m.shuffle)  # fmt: skip
    ts = np.arange(200)
    (a, *rest), (b, *other_rest) = m.sample_many(ts), other.sample_many(ts)
    assert [m.names[k] for k in a] == [other.names[k] for k in b]
    assert all(np.array_equal(x, y) for x, y in zip(rest, other_rest, strict=True))


def families(n: int) -> list[list[int]]:
    rng = np.random.default_rng(n)
    return [
        rng.integers(1, 10_000, n).tolist(),
        (1 + 1000 * rng.lognormal(0, 2, n)).astype(int).tolist(),
        [1] * n,
        [1] * (n - 1) + [1000],
        *[[int(1e7 * (i + 1) ** -a) + 1 for i in range(n)] for a in (0.5, 1.0, 1.5)],
    ]


def worst_deviation(datasets: npt.NDArray[np.int64], weights: list[int]) -> float:
    """max |count - weight * j| over all datasets and prefixes: each dataset is worst just before or at its draws."""
    total, worst = sum(weights), 0.0
    for k, weight in enumerate(weights):
        at = np.flatnonzero(datasets == k)
        numbers = np.arange(len(at))
        for prefix, count in ((at, numbers), (at + 1, numbers + 1)):
            if len(at):
                worst = max(worst, float(np.abs(count - prefix * (weight / total)).max()))
    return worst


@pytest.mark.parametrize("n", [2, 3, 5, 16, 33, 256, 1024])
def test_counts_stay_near_the_weights(n: int) -> None:
    for weights in families(n):
        m = cl.Mixture([10**6] * n, weights=weights, block=1)
        worst = worst_deviation(m.locate_many(np.arange(100_000 if n < 100 else 30_000))[0], weights)
        assert worst <= m.deviation + 1e-6  # the bound that the tree promises, for runs of any length
        assert m.deviation <= 1.2


@given(st.lists(st.integers(1, 2**20), min_size=2, max_size=24))
@settings(max_examples=300)
def test_deviation_is_below_two_for_any_weights(weights: list[int]) -> None:
    assert build_tree(weights).deviation < 2


def test_no_rank_is_bound_to_one_dataset() -> None:
    """Equal, skewed and random weights of 2 to 64 datasets, 2 to 64 ranks: each rank sees each dataset as often."""
    rng = np.random.default_rng(0)
    for n in (2, 3, 4, 8, 16, 32, 64):
        for weights in ([1] * n, rng.integers(1, 20, n).tolist(), [1] * (n - 1) + [n]):
            datasets, _ = cl.Mixture([10**6] * n, weights=weights).locate_many(np.arange(64 * 2048))
            for ranks in (2, 3, 4, 8, 16, 32, 63, 64):
                used = datasets[: len(datasets) // ranks * ranks].reshape(-1, ranks)
                expected = len(used) * np.array(weights) / sum(weights)
                for rank in range(ranks):
                    counts = np.bincount(used[:, rank], minlength=n)
                    assert (np.abs(counts - expected) < 6 * np.sqrt(expected) + 2).all(), (n, weights, ranks)


def test_far_positions_and_tiny_weights() -> None:
    m = cl.Mixture([1, 2**63], weights=[2**-39, 1], names=["rare", "common"])
    for t in (2**62, 2**63 - 2):
        assert m.index_of_window(*m.sample(t)) == t


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": []}, "no datasets"),
        ({"sizes": [0]}, "lower seq_len"),
        ({"sizes": [1, 1], "weights": [1]}, "expected a value for each"),
        ({"sizes": [1, 1], "weights": [1, 0]}, "above 0"),
        ({"sizes": [1, 1], "weights": [1, float("nan")]}, "finite"),
        ({"sizes": [1, 1], "weights": [1, True]}, "expected a number"),
        ({"sizes": [1, 1], "weights": [1, 2**-41]}, "2\\*\\*-40"),
        ({"sizes": [1, 1], "weights": [10**400, 1]}, r"weights\.1: found 1, below 2\*\*-40 of the total"),
        ({"sizes": [1, 1], "names": ["a", "a"]}, "a name twice"),
        ({"sizes": [1], "block": 65_537}, "block"),
        ({"sizes": [1], "segments": [Segment(at=5, weights={"0": 1})]}, "expected 0"),
        ({"sizes": [1], "segments": [Segment(at=0, weights={"0": 1}), Segment(at=5, weights={"0": 1})] * 2}, "once"),
        ({"sizes": [1], "weights": [1], "segments": [Segment(at=0, weights={"0": 1})]}, "once each"),
        ({"sizes": [1], "segments": [Segment(at=0, weights={"x": 1})]}, "unknown dataset 'x'"),
        ({"sizes": [1], "segments": [Segment(at=0, weights={"0": 1}), *[Segment(at=1, skip=2**61)] * 2]}, "skip"),
        ({"sizes": [1], "max_epochs": [0]}, "max_epochs"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cl.Mixture(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at": 2**63, "weights": {"a": 1}}, r"at: found 9223372036854775808, expected an integer from 0"),
        ({"at": 0.5, "weights": {"a": 1}}, "at: found 0.5"),
        ({"at": 5}, r"phases\.5\.weights: found no weights"),
        ({"at": -1, "skip": 1}, "at: found -1"),
        ({"at": 0, "skip": -1}, "skip"),
        ({"at": 2**62, "skip": 1}, "skip"),
        ({"at": 0, "skip": 1, "weights": {"a": 1}}, "skip"),
    ],
)
def test_bad_segments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Segment(**arguments)


def test_max_epochs_is_checked_before_training() -> None:
    m = cl.Mixture([100, 1000], weights=[1, 1], names=["small", "large"], max_epochs=[2, None])
    m.check_run(400)
    with raises(ConfigError, "datasets.small.max_epochs", "samples that reads 249 of its 100, 2.49 epochs"):
        m.check_run(500)


def test_numbers_of_numpy_give_the_same_order_as_plain_ones() -> None:
    def order(number: type, integer: type) -> list[list[int]]:
        segments = [
            Segment(at=integer(at), weights={"a": number(w), "b": number(0.3)}) for at, w in ((0, 0.7), (90, 2.5))
        ]
        m = cl.Mixture([500, 2000], names=["a", "b"], segments=segments, seed=integer(3))
        return [column.tolist() for column in m.sample_many(np.arange(300))]

    assert order(np.float64, np.int64) == order(float, int)


INSIDE = """
import numpy as np
import conceptloader as cl
samples = np.arange(3000, dtype=np.uint64)
for sizes in ([1], [7, 1500], [3000, 500, 64, 2000, 40]):
    later = {str(k): k + 1 for k in range(len(sizes))}
    two = [cl.Segment(at=0, weights={"0": 1}), cl.Segment(at=100, weights=later)]
    for block in (1, 64):
        for segments in ([cl.Segment(at=0, weights=later)], two):
            m = cl.Mixture(sizes, segments=segments, block=block)
            datasets, epochs, windows = m.sample_many(samples)
            for k in range(len(sizes)):
                mine = np.flatnonzero((datasets == k) & (epochs == 0))
                assert m.indices_of_windows(k, 0, windows[mine]).tolist() == mine.tolist()
"""


@pytest.mark.timeout(300)  # kernels are compiled for it
def test_kernels_stay_in_their_arrays(bounds_checks: dict[str, str]) -> None:
    """With checks of every index, in a process of its own."""
    checkout = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", INSIDE], env=bounds_checks, cwd=checkout, check=True, timeout=200)
