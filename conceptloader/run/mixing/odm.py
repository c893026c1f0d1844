"""Online data mixing: datasets are arms of a bandit, their losses the rewards."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from conceptloader.base.strict import Count, Natural, Rule, Section, build
from conceptloader.errors import ResumeError
from conceptloader.run.mixing.controller import Controller, SavedRows, Weights, rounded, saved_rows, shares


@dataclass(frozen=True, kw_only=True)
class ODMOptions(Section):
    """smoothing: of the exponentiated losses, below 1; None for EXP3, whose rewards are summed over a dataset's share.

    warmup_steps: before them weights stay. every: so many steps the weights change; the losses of others do not count.
    """

    smoothing: Annotated[float, Rule(lambda value: 0 <= value < 1, "from 0 to below 1")] | None = 0.9
    warmup_steps: Natural = 0
    every: Count = 1


@dataclass(frozen=True, kw_only=True)
class SavedODM(SavedRows):
    """Of each dataset its share and its reward. rule: what the rewards are, which `smoothing` chooses."""

    rule: str
    datasets: Mapping[str, tuple[float, float]]
    exploration: float


class ODM(Controller):
    """Datasets with a higher loss are drawn more often (Albalak et al., 2023, "Efficient Online Data Mixing").

    Of K datasets each keeps a share of min(1 / K, sqrt(log(K) / (K * step))) for exploration. The rest goes, as in the
    authors' code, in proportion to the moving average of exp(loss), or with `smoothing: null` as EXP3 has it. A dataset
    without a loss in a step keeps its reward; the reward of one that never had a loss is 0.

    Args:
        weights: See Controller; only their proportions matter, and only to EXP3.
        state: See Controller.
        options: Those of `mixing: {odm: {...}}` in a configuration.
    """

    def __init__(self, weights: Weights, state: Mapping[str, Any] | None = None, **options: Any) -> None:
        self.options = build(ODMOptions, options, "odm")
        self.rule = "sum" if self.options.smoothing is None else "average"
        self.shares, self.rewards = shares(weights), dict.fromkeys(weights, 0.0)
        self.exploration = 1 / len(self.shares)
        if state is not None:
            saved, (self.shares, self.rewards) = saved_rows(SavedODM, state, weights)
            if saved.rule != self.rule:
                raise ResumeError("mixing", repr(saved.rule), self.rule, "restore mixing.odm.smoothing in the YAML")
            self.exploration = saved.exploration

    def due(self, step: int) -> bool:
        """See Controller.due."""
        return step >= self.options.warmup_steps and not (step + 1) % self.options.every

    def observe(self, step: int, seen: Weights) -> dict[str, float] | None:
        """See Controller.observe."""
        if not self.due(step):
            return None
        number, count, options = step + 1, len(self.shares), self.options
        before, self.exploration = self.exploration, min(1 / count, math.sqrt(math.log(count) / (count * number)))
        if options.smoothing is None:
            for name, loss in seen.items():
                self.rewards[name] += loss / 10 / self.shares[name]
            most = max(self.rewards.values())
            arms = {name: math.exp((reward - most) * before) for name, reward in self.rewards.items()}
        else:
            for name, loss in seen.items():
                old = options.smoothing * self.rewards[name]
                self.rewards[name] = old + (1 - options.smoothing) * math.exp(loss)
            arms = self.rewards
        exploited = 1 - count * self.exploration
        self.shares = {name: exploited * share + self.exploration for name, share in shares(arms).items()}
        return rounded(self.shares)

    def state(self) -> dict[str, Any]:
        """See Controller.state."""
        rows = {name: [share, self.rewards[name]] for name, share in self.shares.items()}
        return {"rule": self.rule, "datasets": rows, "exploration": self.exploration}
