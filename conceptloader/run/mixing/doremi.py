"""DoReMi: datasets whose loss is far above that of a reference model gain weight."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from conceptloader.base.strict import Positive, Rule, Section, build
from conceptloader.errors import ConfigError
from conceptloader.run.mixing.controller import Controller, SavedRows, Weights, rounded, saved_rows, shares


@dataclass(frozen=True, kw_only=True)
class DoReMiOptions(Section):
    """reference: mean loss of each dataset under the reference model; None where the losses given are in excess of it.

    step_size: of the weights' logarithms. smoothing: the share that is spread evenly. initial_excess: of a dataset that
    had no loss yet; the authors' code has log(vocabulary).
    """

    reference: dict[str, float] | None = None
    step_size: Positive = 1.0
    smoothing: Annotated[float, Rule(lambda value: 0 < value <= 1, "above 0, at most 1")] = 1e-4
    initial_excess: Annotated[float, Rule(lambda value: value >= 0, "of 0 or more")] = 0.0


@dataclass(frozen=True, kw_only=True)
class SavedDoReMi(SavedRows):
    """Of each dataset its weight, the mean of these, and its excess."""

    datasets: Mapping[str, tuple[float, float, float]]
    updates: int


class DoReMi(Controller):
    """Group distributionally robust weights (Xie et al., 2023, "DoReMi"), as the authors' code updates them.

    They are those of the mixture; in that code they weight the losses of the datasets, at fixed sampling.

    Each step multiplies a dataset's weight by exp(step_size * excess), and mixes in an even share of `smoothing`. The
    excess is the loss above the reference, at least 0. Of a dataset without a loss in a step it is that of the last
    step that had one.

    The authors clip the excess of every token at 0, which means do not show. To have it, leave `reference` out, and
    give as losses the means of (loss - reference loss) clipped by token.

    Args:
        weights: See Controller.
        state: See Controller.
        options: Those of `mixing: {doremi: {...}}` in a configuration.

    Attributes:
        average: The mean of all weights so far, the first ones included: what DoReMi trains the final model with.
    """

    def __init__(self, weights: Weights, state: Mapping[str, Any] | None = None, **options: Any) -> None:
        self.options = given = build(DoReMiOptions, options, "doremi")
        if given.reference is not None and sorted(given.reference) != sorted(weights):
            raise ConfigError(
                "doremi.reference",
                ", ".join(sorted(given.reference)),
                f"a loss for each of {', '.join(sorted(weights))}",
                "set mixing.doremi.reference.NAME for each dataset",
            )
        self.weights = self.average = shares(weights)
        self.excess, self.updates = dict.fromkeys(weights, given.initial_excess), 1
        if state is not None:
            saved, (self.weights, self.average, self.excess) = saved_rows(SavedDoReMi, state, weights)
            self.updates = saved.updates

    def observe(self, step: int, seen: Weights) -> dict[str, float]:
        """See Controller.observe."""
        reference, options = self.options.reference or dict.fromkeys(seen, 0.0), self.options
        self.excess |= {name: max(loss - reference[name], 0.0) for name, loss in seen.items()}
        logs = {name: math.log(weight) + options.step_size * self.excess[name] for name, weight in self.weights.items()}
        most = max(logs.values())
        even = options.smoothing / len(logs)
        risen = shares({name: math.exp(log - most) for name, log in logs.items()})
        self.weights = {name: (1 - options.smoothing) * share + even for name, share in risen.items()}
        self.updates += 1
        self.average = {name: old + (self.weights[name] - old) / self.updates for name, old in self.average.items()}
        return rounded(self.weights)

    def state(self) -> dict[str, Any]:
        """See Controller.state."""
        rows = {name: [weight, self.average[name], self.excess[name]] for name, weight in self.weights.items()}
        return {"datasets": rows, "updates": self.updates}
