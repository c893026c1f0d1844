"""The whole order of a run whose weights were set live thousands of times: phases are built when they are asked for."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from conceptloader.kernels.kernel import I64Array, U64Array
from conceptloader.kernels.order import KernelTables
from conceptloader.order.mixture import Mixture
from conceptloader.order.permutation import MAX_N
from conceptloader.order.phases import Phase

_KEPT = 64  # phases that stay built


@dataclass(frozen=True)
class LoggedPhase:
    """A phase of a run whose weights were set live.

    phase: with names of members. counts: draws of each before it, of those with any; None to compute them. why: its
    weights were set. losses: see WeightsSet in progress/runlog.py.
    """

    phase: Phase
    counts: Mapping[str, int] | None
    why: str = ""
    losses: Mapping[str, float] = field(default_factory=dict)


class LiveMixture(Mixture):
    """A Mixture with phases before its origin.

    Args:
        past: Those phases, in order of start: all from the first of them on.
        options: As of a Mixture, with its origin.
    """

    def __init__(self, past: Sequence[LoggedPhase], **options: Any) -> None:
        super().__init__(**options)
        self.past = past
        self._options = {key: options[key] for key in ("sizes", "names", "seed", "block")}
        self._piece = lru_cache(_KEPT)(self._build)
        self._past_starts = np.array([one.phase.start for one in past], np.uint64)
        self._bases = np.zeros((len(past) + 1, len(self.sizes)), np.int64)
        self._bases[-1] = self.origin[1]
        for k, one in enumerate(past):
            counts = one.counts
            known = [counts.get(name, 0) for name in self.names] if counts is not None else None
            self._bases[k] = self._piece(k - 1).counts(one.phase.start) if known is None else known
        self.known = past[0].phase.start, self._bases[0].tolist()

    @property
    def kernel_tables(self) -> KernelTables | None:
        """None: kernels would need all phases at once."""
        return None

    def _build(self, k: int) -> Mixture:
        """The order within past phase k."""
        phase = self.past[k].phase
        return Mixture(phases=[phase], origin=(phase.start, self._bases[k].tolist()), **self._options)

    def _locate(self, g: U64Array) -> tuple[I64Array, U64Array]:
        self.check_known(int(g.min(initial=MAX_N)))
        datasets, draws = np.empty(g.shape, np.int64), np.empty(g.shape, np.uint64)
        number = np.searchsorted(self._past_starts, g, side="right") - 1
        number[g >= self.origin[0]] = len(self.past)
        for k in np.unique(number).tolist():
            chosen = number == k
            piece = super()._locate if k == len(self.past) else self._piece(k).locate_many
            datasets[chosen], draws[chosen] = piece(g[chosen])
        return datasets, draws

    def _counts(self, g: int) -> list[int]:
        if g >= self.origin[0]:
            return super()._counts(g)
        self.check_known(g)
        return self._piece(bisect_right(self._past_starts, g) - 1).counts(g)

    def _position(self, dataset: int, draw: int) -> int | None:
        found = int(self._positions(dataset, np.array([draw], np.uint64))[0])
        return None if found < 0 else found

    def _positions(self, dataset: int, draws: U64Array) -> I64Array:
        self.check_drawn(dataset, int(draws.min(initial=MAX_N)))
        found = np.full(len(draws), -1, np.int64)
        number = np.searchsorted(self._bases[:, dataset], draws.astype(np.int64), side="right") - 1
        for k in np.unique(number).tolist():
            chosen = number == k
            piece = super()._positions if k == len(self.past) else self._piece(k)._positions
            found[chosen] = piece(dataset, draws[chosen])
        return found
