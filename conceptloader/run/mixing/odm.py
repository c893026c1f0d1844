"""Online data mixing: datasets are arms of a bandit, their losses the rewards."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from conceptloader.base.strict import Count, Natural, Rule, Section, build
from conceptloader.run.mixing.controller import Controller, SavedRows, Weights, rounded, saved_rows, shares


@dataclass(frozen=True, kw_only=True)
class ODMOptions(Section):
    """smoothing: of the exponentiated losses, below 1.

    warmup_steps: before them weights stay. every: so many steps the weights change; the losses of others do not count.
    """

    smoothing: Annotated[float, Rule(lambda value: 0 <= value < 1, "from 0 to below 1")] = 0.9
    warmup_steps: Natural = 0
    every: Count = 1


@dataclass(frozen=True, kw_only=True)
class SavedODM(SavedRows):
    """Of each dataset its reward."""

    datasets: Mapping[str, tuple[float]]


class ODM(Controller):
    """Datasets with a higher loss are drawn more often (Albalak et al., 2023, "Efficient Online Data Mixing").

    Of K datasets each keeps a share of min(1 / K, sqrt(log(K) / (K * step))) for exploration. The rest goes, as in the
    authors' code, in proportion to the moving average of exp(loss). A dataset without a loss in a step keeps its
    reward; the reward of one that never had a loss is 0.

    Args:
        weights: See Controller; only the names of the datasets matter.
        state: See Controller.
        options: Those of `mixing: {odm: {...}}` in a configuration.
    """

    def __init__(self, weights: Weights, state: Mapping[str, Any] | None = None, **options: Any) -> None:
        self.options = build(ODMOptions, options, "odm")
        self.rewards = dict.fromkeys(weights, 0.0)
        if state is not None:
            (self.rewards,) = saved_rows(SavedODM, state, weights)[1]

    def due(self, step: int) -> bool:
        """See Controller.due."""
        return step >= self.options.warmup_steps and not (step + 1) % self.options.every

    def observe(self, step: int, seen: Weights) -> dict[str, float] | None:
        """See Controller.observe."""
        if not self.due(step):
            return None
        count, smoothing = len(self.rewards), self.options.smoothing
        explored = min(1 / count, math.sqrt(math.log(count) / (count * (step + 1))))
        for name, loss in seen.items():
            self.rewards[name] = smoothing * self.rewards[name] + (1 - smoothing) * math.exp(loss)
        return rounded(
            {name: (1 - count * explored) * share + explored for name, share in shares(self.rewards).items()}
        )

    def state(self) -> dict[str, Any]:
        """See Controller.state."""
        return {"datasets": {name: [reward] for name, reward in self.rewards.items()}}
