"""The weights of a run over its samples: phases, and ramps between them, which are phases as well.

A ramp becomes phases where a configuration becomes an order; all that follows from there knows phases alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, pi, sin
from typing import Literal

from conceptloader.base.checks import as_integer, falls
from conceptloader.base.strict import Count, Natural, Positive, Section, convert
from conceptloader.errors import ConfigError

STEPS = 63  # of a ramp at most: with its end, 64 phases
_SHARE = 1 << 20  # of which a share of the later weights is a multiple: no sine is so wrong that it decides which
_TOTAL = 1 << 32  # of the weights of a step, about
Shape = Literal["linear", "cosine"]


@dataclass(frozen=True, kw_only=True)
class Ramp(Section):
    """How the weights of the phase before move to those of a phase.

    Attributes:
        samples: Global samples from the start of the phase on, after which its weights hold in full.
        shape: "linear", or "cosine": half a period, slow at both ends.
    """

    samples: Count
    shape: Shape = "linear"

    def __str__(self) -> str:
        return f"{self.shape} over {self.samples} samples"


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Proportions in which datasets are drawn, from some sample on.

    Attributes:
        start: Global sample from which on the weights hold.
        weights: Dataset -> number above 0; datasets that are not named are not drawn.
        ramp: How the weights of the phase before move to these; None: at once. An order has phases in its place.
    """

    start: Natural
    weights: Mapping[str, Positive]
    ramp: Ramp | None = None

    @property
    def shares(self) -> dict[str, float]:
        """Dataset -> its part of the samples."""
        total = sum(self.weights.values())
        return {name: weight / total for name, weight in self.weights.items()}


def checked_phases(phases: Sequence[Phase], hint: str = "", first: int = 0) -> list[Phase]:
    """`phases` with plain integers as starts. Raises ConfigError unless these are `first` and then increase."""
    result = [
        replace(
            phase,
            start=as_integer(phase.start, "phases: start"),
            ramp=convert(phase.ramp, Ramp | None, f"phases.{phase.start}.ramp"),
        )
        for phase in phases
    ]
    starts = [phase.start for phase in result]
    ends = [phase.start + (phase.ramp.samples if phase.ramp else 0) for phase in result]
    if starts[:1] not in ([], [first]) or falls(starts) is not None or max(ends, default=0) >= 1 << 64:
        rule = f"{first} and then increasing samples below 2**64"
        raise ConfigError("phases", f"starts {starts}", rule, hint or f"sort `phases` by start, from {first} on")
    check_first(result, f"phases.{first}.ramp")
    return result


def check_first(phases: Sequence[Phase], where: str) -> None:
    """Raise ConfigError if the first of all phases has a ramp. where: it stands, for the error."""
    if phases and phases[0].ramp is not None:
        found = f"a ramp from sample {phases[0].start} on"
        raise ConfigError(
            where, found, "a later start", f"set {where} to a later sample: the weights before it are missing"
        )


def without_ramps(phases: Sequence[Phase]) -> list[list[Phase]]:
    """For each phase, whose weights are integers, those in its place: itself alone, or the steps of its ramp.

    A ramp moves from the weights that are in force where it begins. The next phase may cut it short.
    """
    result: list[list[Phase]] = []
    for k, phase in enumerate(phases):
        steps = [phase] if phase.ramp is None else _steps(result[-1][-1].weights, phase, phase.ramp)
        result.append([step for step in steps if k + 1 == len(phases) or step.start < phases[k + 1].start])
    return result


def _steps(before: Mapping[str, float], phase: Phase, ramp: Ramp) -> list[Phase]:
    count = min(STEPS, ramp.samples)
    steps = [
        Phase(
            start=phase.start + k * ramp.samples // count,
            weights=_between(before, phase.weights, share_of_step(ramp.shape, k, count)),
        )
        for k in range(count)
    ]
    return [*steps, Phase(start=phase.start + ramp.samples, weights=phase.weights)]


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
    weights = {name: max(1, (2 * _TOTAL * part + whole) // (2 * whole)) for name, part in parts.items()}
    common = gcd(*weights.values())
    return {name: weight // common for name, weight in weights.items()}
