"""Ramps: weights that move to others, in segments."""

from decimal import Decimal, localcontext
from fractions import Fraction

import pytest

from conceptloader.config.phases import STEPS, Phase, Ramp, planned, share_of_step

PI = Decimal("3.14159265358979323846264338327950288419716939937510582")
A, B = {"a": 7, "b": 3}, {"b": 1, "c": 4}


def steps_of(samples, shape="linear"):
    found = planned([Phase(at=0, weights=A), Phase(at=100, weights=B, ramp=Ramp(samples=samples, shape=shape))])
    return [(step.at, step.weights) for step in found]


def sine_of_pi(x):
    angle = PI * x.numerator / x.denominator
    term = total = angle
    for k in range(1, 40):
        term *= -angle * angle / ((2 * k) * (2 * k + 1))
        total += term
    return total


@pytest.mark.parametrize("count", range(1, STEPS + 1))
def test_shares_are_the_means_of_the_ramp_on_every_platform(count):
    """What a sine of a platform's library may miss is far from the distance to the next rounding."""
    with localcontext() as context:
        context.prec = 50
        edges = [sine_of_pi(Fraction(k, count)) for k in range(count + 1)]
        for k in range(count):
            exact = (Decimal(1) / 2 - (edges[k + 1] - edges[k]) * count / (2 * PI)) * (1 << 20)
            assert abs(share_of_step("cosine", k, count) - exact) < Decimal("0.499999")
            assert share_of_step("linear", k, count) == round(Fraction((2 * k + 1) << 20, 2 * count))


def test_these_are_the_segments():
    """Of a release: another one that has others cannot resume a run within a ramp."""
    found = steps_of(10**6)
    assert found[:2] == [(0, A), (100, {"a": 2982616269, "b": 1285081498, "c": 27269530})]
    assert found[32] == (100 + 31 * 10**6 // 63, {"a": 751619277, "b": 536870912, "c": 858993459})
    assert found[63:] == [(984_226, {"a": 23860838, "b": 862402150, "c": 3408704307}), (1_000_100, B)]
    assert steps_of(3, "cosine")[1:] == [
        (100, {"a": 2746407731, "b": 1251337421, "c": 297222144}),
        (101, {"a": 751619277, "b": 536870912, "c": 858993459}),
        (102, {"a": 260069376, "b": 896146227, "c": 3138751693}),
        (103, B),
    ]


def test_a_ramp_moves_on_from_where_the_one_before_was_cut():
    ramps = Phase(at=100, weights=B, ramp=Ramp(samples=63)), Phase(at=150, weights=A, ramp=Ramp(samples=1))
    last, half, end = planned([Phase(at=0, weights=A), *ramps])[50:]
    assert (last.at, half.at, end.at) == (149, 150, 151)
    assert half.shares == pytest.approx({n: (last.shares[n] + end.shares.get(n, 0)) / 2 for n in "abc"})
