"""A controller for tests of what sets weights, and of what hands losses on; an example of one, too."""

from collections.abc import Mapping
from typing import Any

from conceptloader.run.mixing.controller import Controller, Weights


class Greedy(Controller):
    """`mixing: {"conceptloader.testing.controllers:Greedy": {times: 9}}`: most of the dataset with the highest loss.

    In every third step the weights stay. See Controller.
    """

    def __init__(self, weights: Weights, state: Mapping[str, Any] | None = None, *, times: int = 2) -> None:
        self.names, self.times = list(weights), times
        self.last = dict(state or {})  # losses; JSON keeps no order of names, which must decide nothing

    def observe(self, step: int, seen: Weights) -> dict[str, float] | None:
        """See Controller.observe."""
        self.last |= seen
        best = max(self.names, key=lambda name: self.last.get(name, 0))
        return None if step % 3 == 2 else {n: 100 * self.times if n == best else 100 + step for n in self.names}

    def state(self) -> dict[str, Any]:
        """See Controller.state."""
        return self.last
