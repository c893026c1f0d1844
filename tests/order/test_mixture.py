"""The mixture against its definition: exactly once and in order at every prefix, near its weights, invertible."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.order.segments import Segment
from conceptloader.order.tree import build_tree
from tests.order import plain
from tests.raises import cells, raises


@st.composite
def mixtures(draw, most):
    """Of datasets of up to `most` windows, with changes of weights and skips; and docs/order.md of the same."""
    sizes = draw(st.lists(st.integers(1, most) | st.integers(1, 60), min_size=1, max_size=7))
    names = draw(st.permutations([f"dataset-{k}" for k in range(len(sizes))]))
    weights = st.dictionaries(st.sampled_from(names), st.integers(1, 1000) | st.floats(0.01, 10), min_size=1)
    starts = draw(st.sets(st.integers(1, 400), max_size=3))
    skips = st.builds(lambda at, count: Segment(at=at, skip=count), st.integers(0, 400), st.integers(1, 100))
    given = [
        Segment(at=0, weights=draw(weights)),
        *draw(st.lists(skips, max_size=3)),
        *(Segment(at=start, weights=draw(weights)) for start in sorted(starts)),
    ]
    seed, block = draw(st.integers(-5, 1 << 64)), draw(st.sampled_from([1, 2, 7, 64]))
    mixture = cl.Mixture(
        sizes=sizes, names=names, segments=given, seed=seed, block=block, shuffle=draw(st.integers(0, 4)) > 0
    )
    skips = [(one.at, one.skip) for one in given if one.skip]
    phases = [(one.at and one.at + sum(n for at, n in skips if at <= one.at), one.weights) for one in given]
    sizes = dict(zip(names, sizes, strict=True))
    return mixture, plain.Order(seed, block, sizes, [phase for phase in phases if phase[1]], skips)


# Sizes on both sides of that up to which windows are shuffled by a table.
MIXTURES = st.sampled_from([1100, 1 << 40, 1 << 63]).flatmap(mixtures)


def place(m, order, name, draw):
    """(dataset, epoch, window) of a draw."""
    epoch, i = divmod(draw, size := order.sizes[name])
    key = plain.epoch_key(plain.derive_key(m.seed, "window order", name), epoch)
    return m.names.index(name), epoch, plain.permute(i, size, key) if m.shuffle else i


@given(both=MIXTURES, ts=st.lists(st.integers(0, 500) | st.integers(0, 2**50), min_size=1, max_size=20))
def test_kernels_equal_the_definition(both, ts):
    m, order = both
    drawn = [order.draw(order.global_sample(t)) for t in ts]
    expected = [place(m, order, *one) for one in drawn]
    assert [*zip(*(column.tolist() for column in m.sample_many(ts)), strict=True)] == expected
    assert m.locate_many(ts)[1].tolist() == [draw for _, draw in drawn]
    assert [m.index_of_window(*one) for one in expected] == ts
    for t in [t for t in ts if t <= 500]:
        assert dict(zip(m.names, m.counts(t), strict=True)) == order.drawn_before(order.global_sample(t))


@settings(max_examples=50)
@given(both=MIXTURES, data=st.data())
def test_the_inverse_of_any_windows_is_that_of_the_definition(both, data):
    """Also of those that a skip passes over, and of datasets that have left or never take part."""
    m, order = both
    dataset, epoch = data.draw(st.integers(0, len(m.sizes) - 1)), data.draw(st.integers(0, 2))
    last = m.sizes[dataset] - 1
    windows = data.draw(st.lists(st.integers(0, min(last, 99)) | st.integers(0, last), min_size=1, max_size=30))
    read = {order.global_sample(t): t for t in range(800)}
    known = {place(m, order, *order.draw(g)): read.get(g, -1) for g in range(max(read) + 1)}
    for window, found in zip(windows, m.indices_of_windows(dataset, epoch, windows).tolist(), strict=True):
        key = dataset, epoch, window
        assert m.index_of_window(*key) == (None if found < 0 else found)
        if found < 800:
            assert found == known.get(key, -1)
            assert key in known or m.names[dataset] not in order.phases[-1][1]
        else:
            assert place(m, order, *order.draw(order.global_sample(found))) == key


@given(st.lists(st.integers(1, 2**20), min_size=2, max_size=24))
@settings(max_examples=300)
def test_deviation_is_below_two_for_any_weights(weights):
    assert build_tree(weights).deviation < 2


def test_far_positions_and_tiny_weights():
    m = cl.Mixture([1, 2**63], weights=[2**-39, 1], names=["rare", "common"])
    for t in (2**62, 2**63 - 2):
        assert m.index_of_window(*m.sample(t)) == t


ARGUMENTS = r"""
sizes: [] | no datasets
sizes: [0] | lower seq_len
sizes: [1, 1], weights: [1] | expected a value for each
sizes: [1, 1], weights: [1, 0] | above 0
sizes: [1, 1], weights: [1, .nan] | finite
sizes: [1, 1], weights: [1, true] | expected a number
sizes: [1, 1], weights: [1, 4.5e-13] | 2\*\*-40
sizes: [1, 1], names: [a, a] | a name twice
sizes: [1], block: 65537 | block
sizes: [1], segments: [{at: 5, weights: {'0': 1}}] | expected 0
sizes: [1], segments: [{at: 0, weights: {'0': 1}}, {at: 5, weights: {'0': 1}}, {at: 5, weights: {'0': 1}}] | once
sizes: [1], segments: [{at: 0, weights: {'0': 1}}, {at: 0, weights: {'0': 1}}] | once
sizes: [1], weights: [1], segments: [{at: 0, weights: {'0': 1}}] | once each
sizes: [1], segments: [{at: 0, weights: {x: 1}}] | unknown dataset 'x'
sizes: [1], segments: [{at: 0, weights: {'0': 1}}, {at: 1, skip: 0x2000000000000000}, {at: 1, skip: 0x2000000000000000}] | skip
sizes: [1], max_epochs: [0] | max_epochs
"""  # noqa: E501


@pytest.mark.parametrize(("arguments", "message"), cells(ARGUMENTS))
def test_bad_arguments(arguments, message):
    given = yaml.safe_load(f"{{{arguments}}}")
    if "segments" in given:
        given["segments"] = [Segment(**one) for one in given["segments"]]
    with pytest.raises(ConfigError, match=message):
        cl.Mixture(**given)


def test_a_weight_beyond_any_float():
    with raises(ConfigError, "weights.1", "1, below 2**-40 of the total"):
        cl.Mixture([1, 1], weights=[10**400, 1])


SEGMENTS = r"""
at: 0x8000000000000000, weights: {a: 1} | at: found 9223372036854775808, expected an integer from 0
at: 0.5, weights: {a: 1} | at: found 0.5
at: 5 | phases\.5\.weights: found no weights
at: -1, skip: 1 | at: found -1
at: 0, skip: -1 | skip
at: 0x4000000000000000, skip: 1 | skip
at: 0, skip: 1, weights: {a: 1} | skip
"""


@pytest.mark.parametrize(("arguments", "message"), cells(SEGMENTS))
def test_bad_segments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Segment(**yaml.safe_load(f"{{{arguments}}}"))


def test_max_epochs_is_checked_before_training():
    m = cl.Mixture([100, 1000], weights=[1, 1], names=["small", "large"], max_epochs=[2, None])
    m.check_run(400)
    with raises(ConfigError, "datasets.small.max_epochs", "samples that reads 249 of its 100, 2.49 epochs"):
        m.check_run(500)


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
def test_kernels_stay_in_their_arrays(bounds_checks):
    """With checks of every index, in a process of its own."""
    checkout = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", INSIDE], env=bounds_checks, cwd=checkout, check=True, timeout=200)
