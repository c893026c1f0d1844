"""Ramps: weights that move to others, in phases."""

from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.order import mixture
from conceptloader.order.built import built_tree
from conceptloader.order.phases import STEPS, Ramp, Shape, share_of_step, without_ramps
from tests.raises import raises

A, B = {"a": 7, "b": 3}, {"b": 1, "c": 4}
START = cl.Phase(start=0, weights=A)


def steps_of(samples: int, shape: Shape = "linear", *more: cl.Phase) -> list[cl.Phase]:
    ramp = cl.Phase(start=100, weights=B, ramp=Ramp(samples=samples, shape=shape))
    return [step for steps in without_ramps([START, ramp, *more]) for step in steps]


def sine_of_pi(x: Fraction) -> Decimal:
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582")
    angle = pi * x.numerator / x.denominator
    term = total = angle
    for k in range(1, 40):
        term *= -angle * angle / ((2 * k) * (2 * k + 1))
        total += term
    return total


@pytest.mark.parametrize("count", range(1, STEPS + 1))
def test_shares_are_the_means_of_the_ramp_on_every_platform(count: int) -> None:
    """What a sine of a platform's library may miss is far from the distance to the next rounding."""
    with localcontext() as context:
        context.prec = 50
        edges = [sine_of_pi(Fraction(k, count)) for k in range(count + 1)]
        for k in range(count):
            pi = Decimal("3.14159265358979323846264338327950288419716939937510582")
            exact = (Decimal(1) / 2 - (edges[k + 1] - edges[k]) * count / (2 * pi)) * (1 << 20)
            assert abs(share_of_step("cosine", k, count) - exact) < Decimal("0.499999")
            assert share_of_step("linear", k, count) == round(Fraction((2 * k + 1) << 20, 2 * count))


@given(
    st.integers(1, 200) | st.integers(1, 1 << 40),
    st.sampled_from(["linear", "cosine"]),
    *[st.dictionaries(st.sampled_from("abcd"), st.integers(1, 1 << 39), min_size=1)] * 2,
)
def test_a_ramp_is_at_most_64_phases(samples: int, shape: Shape, old: dict[str, int], new: dict[str, int]) -> None:
    phases = [cl.Phase(start=0, weights=old), cl.Phase(start=9, weights=new, ramp=Ramp(samples=samples, shape=shape))]
    *steps, last = without_ramps(phases)[1]
    assert last == cl.Phase(start=9 + samples, weights=new)
    assert [step.start for step in steps] == sorted({9 + k * samples // STEPS for k in range(STEPS)})[: len(steps)]
    assert len(steps) == min(STEPS, samples)
    before, after = (cl.Phase(start=0, weights=weights).shares for weights in (old, new))
    for k, step in enumerate(steps):
        share = share_of_step(shape, k, len(steps)) / (1 << 20)
        assert list(step.weights) == sorted({*old, *new})
        assert all(type(weight) is int and weight > 0 for weight in step.weights.values())
        for name, found in step.shares.items():
            assert found == pytest.approx(before.get(name, 0) * (1 - share) + after.get(name, 0) * share, abs=2**-30)


def test_these_are_the_phases() -> None:
    """Of a release: another one that has others cannot resume a run within a ramp."""
    found = [(step.start, step.weights) for step in steps_of(10**6)]
    assert found[:2] == [(0, A), (100, {"a": 2982616269, "b": 1285081498, "c": 27269530})]
    assert found[32] == (100 + 31 * 10**6 // 63, {"a": 751619277, "b": 536870912, "c": 858993459})
    assert found[63:] == [(984_226, {"a": 23860838, "b": 862402150, "c": 3408704307}), (1_000_100, B)]
    assert steps_of(3, "cosine")[1:] == [
        cl.Phase(start=100, weights={"a": 2746407731, "b": 1251337421, "c": 297222144}),
        cl.Phase(start=101, weights={"a": 751619277, "b": 536870912, "c": 858993459}),
        cl.Phase(start=102, weights={"a": 260069376, "b": 896146227, "c": 3138751693}),
        cl.Phase(start=103, weights=B),
    ]


def test_the_next_phase_cuts_it_short_and_the_next_ramp_moves_on_from_there() -> None:
    whole = steps_of(63)
    assert steps_of(63, "linear", cl.Phase(start=150, weights=A)) == [*whole[:51], cl.Phase(start=150, weights=A)]
    again = steps_of(63, "linear", cl.Phase(start=150, weights=A, ramp=Ramp(samples=1)))
    assert [step.start for step in again[50:]] == [149, 150, 151]
    assert again[51].shares == pytest.approx({n: (again[50].shares[n] + START.shares.get(n, 0)) / 2 for n in "abc"})
    for start, drawn in ((0, None), (70, {70: [70, 0]})):
        with raises(cl.errors.ConfigError, f"phases.{start}.ramp", f"a ramp from sample {start} on"):
            first = cl.Phase(start=start, weights=A, ramp=Ramp(samples=9))
            cl.Mixture([1, 1], names=["a", "b"], phases=[first], drawn=drawn)


@pytest.mark.parametrize("samples", [0, 1.5, True, 1 << 64])
def test_bad_lengths(samples: Any) -> None:
    with raises(cl.errors.ConfigError, "samples"):
        Ramp(samples=samples)
    phases = [START, cl.Phase(start=9, weights=A, ramp={"samples": samples})]  # type: ignore[arg-type]
    with raises(cl.errors.ConfigError, "phases.9.ramp.samples"):
        cl.Mixture([1, 1], names=["a", "b"], phases=phases)


def test_phases_stay_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of samples from anywhere would build trees again and again; of very many phases the last stay."""
    phases = [cl.Phase(start=10 * k, weights={"a": 1 + k, "b": 3}) for k in range(200)]
    places = np.random.default_rng(0).integers(0, 2000, (100, 16)).astype(np.uint64)
    built: list[tuple[int, ...]] = []
    monkeypatch.setattr(mixture, "built_tree", lambda weights: built.append(weights) or built_tree(weights))
    m = cl.Mixture([10**6] * 2, names=["a", "b"], phases=phases)
    expected = m.sample_many(np.arange(2000))
    built.clear()
    for few in places:
        for found, known in zip(m.sample_many(few), expected, strict=True):
            assert np.array_equal(found, known[few])
    assert not built
    monkeypatch.setattr(mixture, "PHASES", 20)
    m = cl.Mixture([10**6] * 2, names=["a", "b"], phases=phases)
    for few in places:
        for found, known in zip(m.sample_many(few), expected, strict=True):
            assert np.array_equal(found, known[few])
    assert len(built) > 1000


@pytest.mark.parametrize("shape", ["linear", "cosine"])
@pytest.mark.parametrize("samples", [100, 5000, 100_000])
def test_an_order_has_the_phases_and_stays_near_the_ramp(shape: Shape, samples: int) -> None:
    options: Any = {"sizes": [10**6] * 3, "names": ["a", "b", "c"], "seed": 3}
    phases = [START, cl.Phase(start=100, weights=B, ramp=Ramp(samples=samples, shape=shape))]
    m, explicit = (cl.Mixture(phases=given, **options) for given in (phases, steps_of(samples, shape)))
    positions = np.arange(samples + 500)
    datasets = m.locate_many(positions)[0]
    assert np.array_equal(datasets, explicit.locate_many(positions)[0])
    x = np.arange(samples) / samples
    moved = x if shape == "linear" else (1 - np.cos(np.pi * x)) / 2
    for k, name in enumerate(m.names):
        share = START.shares.get(name, 0) * (1 - moved) + phases[1].shares.get(name, 0) * moved
        drawn = np.cumsum(datasets[100 : 100 + samples] == k)
        assert np.abs(drawn - np.cumsum(share)).max() < 40 + samples / 63 / 63
