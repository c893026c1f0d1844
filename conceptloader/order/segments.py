"""What the samples of a run are drawn by, as one list: weights that hold from some sample on, and jumps over data.

Phases and ramps of a configuration, its skips, weights that were set while the run was going, and what came before a
change of the data are all segments. Everything counts the trainer's samples.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from conceptloader.base.checks import as_count, falls
from conceptloader.base.strict import Saved, unknown
from conceptloader.errors import ConfigError
from conceptloader.order.weights import exact_weights

MAX_SKIPPED = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Segment(Saved):
    """How samples are drawn from some sample on.

    Attributes:
        at: The trainer's sample from which on it holds.
        weights: Dataset -> number above 0, kept as the smallest integers in the same proportion; datasets that are not
            named are not drawn. Empty where samples are passed over: those in force stay.
        skip: Samples of the order that are passed over there.
        ramp: A step of a ramp, but not the first: weights that are set live before it end it.
        drawn: Dataset -> its draws before, of those with any; of weights that were set live, and of no other segment.
        why: These were set.
        losses: Of datasets, that these were made of.

    Raises:
        ConfigError: A value breaks a rule.
    """

    at: int
    weights: Mapping[str, float] = field(default_factory=dict)
    skip: int = 0
    ramp: bool = False
    drawn: Mapping[str, int] | None = None
    why: str = ""
    losses: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", as_count(self.at, "phases: at", 0))
        if as_count(self.skip, "skip: count", 0) and (self.weights or self.at + self.skip >= MAX_SKIPPED):
            raise ConfigError("skip", f"{self.skip} at {self.at}", "samples below 2**62, without weights")
        if not self.skip:
            object.__setattr__(self, "weights", exact_weights(self.weights, f"phases.{self.at}.weights"))

    @property
    def shares(self) -> dict[str, float]:
        """Dataset -> its part of the samples."""
        total = sum(self.weights.values())
        return {name: weight / total for name, weight in self.weights.items()}


def ordered(segments: Iterable[Segment], names: Collection[str]) -> tuple[Segment, ...]:
    """A list of segments of these datasets, in order; those at one sample in this sequence.

    Raises:
        ConfigError: No weights from sample 0 on, two at one sample, or weights of other datasets.
    """
    found = sorted(segments, key=lambda one: one.at)
    for live in (False, True):
        starts = [one.at for one in found if one.weights and (one.drawn is not None) is live]
        if falls(starts) is not None or (starts[:1] != [0] and not live):
            raise ConfigError(
                "phases", f"weights at the samples {starts[:20]}", "0, and later ones, once each", "correct `phases`"
            )
    for one in found:
        for name in one.weights:
            if name not in names:
                raise unknown(f"phases.{one.at}.weights.{name}", name, names, "dataset")
    if sum(one.skip for one in found) >= MAX_SKIPPED:
        raise ConfigError("skip", "2**62 samples or more in all", "fewer", "pass fewer samples in skip")
    return tuple(found)


def in_force(segments: Iterable[Segment]) -> list[Segment]:
    """Without those steps of a ramp that weights set live ended. segments: in order."""
    found, ended = list[Segment](), False
    for one in segments:
        if not (one.ramp and ended):
            found.append(one)
            ended = one.drawn is not None if one.weights else ended
    return found


def origins(segments: Iterable[Segment]) -> list[int]:
    """The global sample that each segment begins at: the trainer's, and all that was skipped. segments: in order."""
    listed = list(segments)
    return [one.at + skipped for one, skipped in zip(listed, accumulate(one.skip for one in listed), strict=True)]
