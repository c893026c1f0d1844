"""Ramps: weights that move to others. Order version 2, whose numbers are frozen as those of version 1 are."""

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.order import ramp, reference
from conceptloader.order.mixture import shares_at
from conceptloader.order.phases import order_phases
from conceptloader.order.ramp import MAX_RAMP, SHARES, Ramp, RampTree, Shape
from conceptloader.order.tree import build_tree
from conceptloader.testing.strategies import mixtures
from tests.order.test_golden import digest
from tests.raises import raises

GOLDEN = json.loads((Path(__file__).parent / "golden_v2.json").read_text())
RAMPED = st.sampled_from([1100, 1 << 40]).flatmap(
    lambda most: mixtures(6, max_size=most, max_start=300, max_skips=2, max_ramp=300)
)
RAMPS = st.builds(Ramp, samples=st.integers(1, 200) | st.integers(1, MAX_RAMP), shape=st.sampled_from(sorted(SHARES)))
A, B = {"a": 7, "b": 3}, {"b": 1, "c": 4}


def ramped(samples: int = 300, shape: Shape = "linear", block: int = 16, *more: cl.Phase, **changes: Any) -> cl.Mixture:
    phases = [cl.Phase(start=0, weights=A), cl.Phase(start=100, weights=B, ramp=Ramp(samples=samples, shape=shape))]
    return cl.Mixture(**{"sizes": [50, 1030, 3], "names": ["a", "b", "c"], "block": block, "seed": 3, **changes},
                      phases=[*phases, *more])  # fmt: skip


def moved(one: Ramp, j: int) -> int:
    return RampTree.of(one, (build_tree([1]), build_tree([1])), (["a"], ["b"])).split(j)[1]


@given(m=RAMPED, ts=st.lists(st.integers(0, 700) | st.integers(0, 2**50), min_size=1, max_size=20))
def test_kernels_equal_the_reference(m: cl.Mixture, ts: list[int]) -> None:
    """Forward and back; of mixtures whose phases the reference makes here, by the weights of the ones before."""
    datasets, draws = m.locate_many(ts)
    _, epochs, windows = m.sample_many(ts)
    for t, *found in zip(ts, *(column.tolist() for column in (datasets, draws, epochs, windows)), strict=True):
        dataset, draw, epoch, window = found
        g = m.skips.global_index(t)
        assert reference.locate(m.phases, m.block, g) == (dataset, draw)
        assert reference.position(m.phases, m.block, dataset, draw) == g
        assert m.index_of_window(dataset, epoch, window) == t
        assert m.indices_of_windows(dataset, epoch, [window]).tolist() == [t]


@given(m=mixtures(6, max_size=1 << 40, max_start=300, max_skips=0, max_ramp=300))
def test_every_draw_once_and_in_order_at_every_prefix(m: cl.Mixture) -> None:
    datasets, draws = m.locate_many(np.arange(700))
    counts = [0] * len(m.sizes)
    for t, (dataset, draw) in enumerate(zip(datasets, draws, strict=True)):
        if t % 29 == 0:
            assert m.counts(t) == counts
        assert draw == counts[dataset]
        counts[dataset] += 1


@given(RAMPS, st.data())
def test_one_sample_after_the_other_moves_or_not(one: Ramp, data: st.DataObject) -> None:
    edges = [segment.start for segment in ramp.segments_of(one)]
    j = data.draw(
        st.integers(0, one.samples + 65_536) | st.sampled_from(edges).flatmap(lambda e: st.integers(e - 2, e + 2))
    )
    assert moved(one, max(j, 0) + 1) - moved(one, max(j, 0)) in (0, 1)
    assert moved(one, 0) == 0
    assert moved(one, one.samples + 9) - moved(one, one.samples) in (8, 9)


@given(st.integers(1, 200) | st.integers(1, MAX_RAMP), st.floats(0, 1))
def test_what_moves_is_the_integral_of_the_share(samples: int, at: float) -> None:
    j = round(at * samples)
    assert abs(moved(Ramp(samples=samples), j) - Fraction(j * j, 2 * samples)) <= Fraction(5, 8)
    area = j / 2 - samples / (2 * math.pi) * math.sin(math.pi * j / samples)  # of (1 - cos(pi x)) / 2
    assert abs(moved(Ramp(samples=samples, shape="cosine"), j) - area) < 0.7 + samples * 0.0002 + (samples < 1000)
    assert abs(ramp.share_at(Ramp(samples=samples), j) - j / samples) <= 1 / samples


def test_the_table_of_the_cosine() -> None:
    assert len(SHARES["cosine"]) == 33
    for k, share in enumerate(SHARES["cosine"]):
        assert abs(share - (1 - math.cos(math.pi * k / 32)) * 2**31) < 0.51


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_counts_stay_near_the_integral(shape: Shape) -> None:
    m = ramped(5000, shape, block=1, sizes=[10**6] * 3)
    datasets, _ = m.locate_many(np.arange(100, 5100))
    expected, worst = np.array([0.0, 0.0, 0.0]), 0.0
    for j, dataset in enumerate(datasets.tolist()):
        shares = shares_at(
            [cl.Phase(start=0, weights=A), cl.Phase(start=100, weights=B, ramp=Ramp(samples=5000, shape=shape))],
            100 + j,
        )
        expected += [shares.get(name, 0) for name in m.names]
        expected[dataset] -= 1
        worst = max(worst, np.abs(expected).max())
    assert worst <= m.deviation < 2


def test_before_and_after_it_there_are_the_phases_of_version_1() -> None:
    m, plain = ramped(), cl.Mixture([50, 1030, 3], names=["a", "b", "c"], seed=3, block=16, phases=[
        cl.Phase(start=0, weights=A), cl.Phase(start=400, weights=B)])  # fmt: skip
    assert [phase.start for phase in m.phases] == [0, 100, 400]
    assert (m.phases[0], m.phases[2].tree, m.phases[2].key) == (
        plain.phases[0],
        plain.phases[1].tree,
        plain.phases[1].key,
    )
    assert set(m.locate_many(np.arange(100, 120))[0].tolist()) <= {0, 1}
    assert set(m.locate_many(np.arange(400, 600))[0].tolist()) == {1, 2}
    exact = [(phase.start, phase.weights, None) for phase in plain.phases]
    assert order_phases(exact, plain.names, 3, 16) == plain.phases
    assert reference.order_phases([part[:2] for part in exact], plain.names, 3, 16) == plain.phases


def test_the_next_phase_may_cut_it_and_the_next_ramp_may_follow_it() -> None:
    cut = ramped(300, "linear", 16, cl.Phase(start=250, weights=A))
    assert [phase.start for phase in cut.phases] == [0, 100, 250]
    assert np.array_equal(cut.locate_many(np.arange(250))[0], ramped().locate_many(np.arange(250))[0])
    back = ramped(300, "linear", 16, cl.Phase(start=400, weights=A, ramp=Ramp(samples=10)))
    assert [phase.start for phase in back.phases] == [0, 100, 400, 410]
    for m in (cut, back):
        datasets, draws = m.locate_many(np.arange(700))
        assert all(draws[datasets == k].tolist() == list(range((datasets == k).sum())) for k in range(3))
    with raises(cl.errors.ConfigError, "phases.399.ramp", "the one before it lasts to 400"):
        ramped(300, "linear", 16, cl.Phase(start=399, weights=A, ramp=Ramp(samples=10)))
    later = cl.Phase(start=70, weights={"a": 1}, ramp=Ramp(samples=10))
    with raises(cl.errors.ConfigError, "phases.70.ramp", "from sample 70 on"):
        cl.Mixture([1], names=["a"], phases=[later], origin=(70, [70]))
    with raises(cl.errors.ConfigError, "phases.0.ramp", "from sample 0 on"):
        cl.Mixture([1], names=["a"], phases=[cl.Phase(start=0, weights={"a": 1}, ramp=Ramp(samples=10))])


@pytest.mark.parametrize("samples", [0, MAX_RAMP + 1, 1.5, True])
def test_bad_lengths(samples: Any) -> None:
    with raises(cl.errors.ConfigError, "samples"):
        Ramp(samples=samples)
    phases = [cl.Phase(start=0, weights=A), cl.Phase(start=9, weights=A, ramp={"samples": samples})]  # type: ignore[arg-type]
    with raises(cl.errors.ConfigError, "phases.9.ramp.samples"):
        cl.Mixture([1, 1], names=["a", "b"], phases=phases)


@pytest.mark.parametrize("block", [1, 64, 65_536])
def test_the_longest_ramp_far_out(block: int) -> None:
    """Where squares fill 62 bits and draws more than 60: against Python's integers, and back."""
    start = 2**62
    phases = [
        cl.Phase(start=0, weights=A),
        cl.Phase(start=start, weights=B, ramp=Ramp(samples=MAX_RAMP, shape="cosine")),
    ]
    m = cl.Mixture([2**63] * 3, names=["a", "b", "c"], block=block, phases=phases)
    inside = [0, 1, 12345, MAX_RAMP // 2 - 1, MAX_RAMP // 2, MAX_RAMP - 2, MAX_RAMP - 1, MAX_RAMP, MAX_RAMP + 1]
    few = inside if block < 100 else inside[-3:]
    datasets, draws = m.locate_many([start + j for j in inside])
    for j in few:
        k = inside.index(j)
        if block < 100:
            assert reference.locate(m.phases, block, start + j) == (datasets[k], draws[k])
        found = m.indices_of_windows(int(datasets[k]), 0, m.sample_many([start + j])[2])
        assert found.tolist() == [start + j]


def test_many_windows_equal_one_after_the_other() -> None:
    for m in (
        ramped(block=1),
        ramped(64, "cosine", 16),
        ramped(40, "linear", 64, skips=[cl.adapters.Skip(at=120, count=33)]),
    ):
        for dataset, size in enumerate(m.sizes):
            for epoch in (0, 1, 2):
                windows = np.random.default_rng(epoch).permutation(size)[:200]
                one_by_one = [m.index_of_window(dataset, epoch, w) for w in windows.tolist()]
                found = m.indices_of_windows(dataset, epoch, windows)
                assert found.tolist() == [-1 if one is None else one for one in one_by_one]


def golden_mixture(block: int) -> cl.Mixture:
    return cl.Mixture(
        sizes=[1000, 1025, 10**9, 5],
        names=["books", "code", "web", "tiny"],
        seed=1234,
        block=block,
        phases=[
            cl.Phase(start=0, weights={"web": 0.7, "code": 0.2, "books": 0.1}),
            cl.Phase(start=1000, weights={"web": 0.5, "code": 0.3, "tiny": 0.01}, ramp=Ramp(samples=3000)),
            cl.Phase(start=6000, weights={"books": 1}, ramp=Ramp(samples=5001, shape="cosine")),
            cl.Phase(start=10_000, weights={"web": 1, "code": 2}),
            cl.Phase(start=12_000, weights={"web": 1}, ramp=Ramp(samples=20, shape="cosine")),
        ],
        skips=[cl.adapters.Skip(at=1500, count=100)],
    )


@pytest.mark.parametrize("block", ["1", "7", "64", "4096"])
def test_golden_mixture(block: str) -> None:
    m = golden_mixture(int(block))
    positions = np.concatenate([np.arange(20_000), np.arange(2**40, 2**40 + 500)])
    assert digest(*m.locate_many(positions), *m.sample_many(positions)[1:]) == GOLDEN["mixture"]["digests"][block]
    if block == "64":
        first = GOLDEN["mixture"]["from_2500"]
        found = m.sample_many(np.arange(2500, 2540))
        assert {name: column.tolist() for name, column in zip(first, found, strict=True)} == first


@pytest.mark.parametrize("case", GOLDEN["ramps"], ids=lambda case: f"{case['shape']} {case['samples']}")
def test_golden_ramps(case: dict[str, Any]) -> None:
    one = Ramp(samples=case["samples"], shape=case["shape"])
    assert [[str(x) for x in segment] for segment in ramp.segments_of(one)[:3]] == case["first_segments"]
    assert [moved(one, j) for j in case["samples_before"]] == case["moved"]
