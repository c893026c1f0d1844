"""The keys `phases` and `skip`, as segments of an order. A ramp becomes up to 64 of them here, and is forgotten."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import pi, sin
from typing import Literal

from conceptloader.base.strict import Count, Natural, Positive, Section
from conceptloader.order.segments import Segment

STEPS = 63  # of a ramp at most: with its end, 64 segments
_SHARE = 1 << 20  # of which a share of the later weights is a multiple: no sine is so wrong that it decides which
_TOTAL = 1 << 32  # of the weights of a step, about
Shape = Literal["linear", "cosine"]


@dataclass(frozen=True, kw_only=True)
class Ramp(Section):
    """How the weights of the phase before move to those of a phase.

    samples: from the start of the phase on, after which its weights hold in full. shape: "cosine" is half a period,
    slow at both ends.
    """

    samples: Count
    shape: Shape = "linear"


@dataclass(frozen=True, kw_only=True)
class Phase(Section):
    """Proportions in which datasets are drawn, from the trainer's sample `at` on; others than these are not drawn.

    ramp: how the weights of the phase before move to these; None: at once.
    """

    at: Natural
    weights: dict[str, Positive]
    ramp: Ramp | None = None


@dataclass(frozen=True, kw_only=True)
class Skip(Section):
    """A jump of the order, after a loss spike, say: `count` samples are passed over at the trainer's sample `at`."""

    at: Natural
    count: Count


def with_skips(weights: Sequence[Segment], skips: Sequence[Skip]) -> tuple[Segment, ...]:
    """In the sequence in which they count: at one sample jumps come first, but after the first weights of all."""
    jumps = sorted((one.at, one.count) for one in skips)
    return (*weights[:1], *(Segment(at=at, skip=count) for at, count in jumps), *weights[1:])


def planned(phases: Sequence[Phase]) -> tuple[Segment, ...]:
    """The segments that a configuration plans. phases: in order, the first at sample 0.

    A ramp moves from the weights that are in force where it begins. The next phase may end it before.
    """
    found: list[Segment] = []
    for k, phase in enumerate(phases):
        steps = [Segment(at=phase.at, weights=phase.weights)]
        if phase.ramp is not None:
            steps = _steps(found[-1].weights, steps[0], phase.ramp)
        found += [one for one in steps if k + 1 == len(phases) or one.at < phases[k + 1].at]
    return tuple(found)


def _steps(before: Mapping[str, float], last: Segment, ramp: Ramp) -> list[Segment]:
    count = min(STEPS, ramp.samples)
    steps = [
        Segment(
            at=last.at + k * ramp.samples // count,
            weights=_between(before, last.weights, share_of_step(ramp.shape, k, count)),
            ramp=k > 0,
        )
        for k in range(count)
    ]
    return [*steps, Segment(at=last.at + ramp.samples, weights=last.weights, ramp=True)]


def share_of_step(shape: Shape, k: int, count: int) -> int:
    """Of the later weights in step k of `count`, in units of 2**-20: what the ramp has there on average."""

    def area(x: float) -> float:
        return x * x / 2 if shape == "linear" else x / 2 - sin(pi * x) / (2 * pi)

    return round(_SHARE * count * (area((k + 1) / count) - area(k / count)))


def _between(before: Mapping[str, float], after: Mapping[str, float], share: int) -> dict[str, int]:
    """Integers near the weights between, none of which is 0; in integers, so that they are the same everywhere."""
    old, new = int(sum(before.values())), int(sum(after.values()))
    parts = {
        name: int(before.get(name, 0)) * new * (_SHARE - share) + int(after.get(name, 0)) * old * share
        for name in sorted({*before, *after})
    }
    whole = old * new * _SHARE
    return {name: max(1, (2 * _TOTAL * part + whole) // (2 * whole)) for name, part in parts.items()}
