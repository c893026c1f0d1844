"""Jumps over data: the trainer's sample t reads global sample g = t + skipped(t)."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conceptloader.base.strict import Count, Natural
from conceptloader.errors import ConfigError

MAX_SKIPPED = 2**62
_NEVER = 2**63 - 1


@dataclass(frozen=True, kw_only=True, order=True)
class Skip:
    """A jump of the order (after a loss spike, say).

    Attributes:
        at: The trainer's sample index.
        count: Global samples that are passed over there.
    """

    at: Natural
    count: Count


class Skips:
    """The mapping t -> g of a list of skips, and its inverse. Empty by default: then t == g.

    arrays: u64 [k] samples at which one happens, and u64 [k + 1], how many are passed over before and after each.

    Raises:
        ConfigError: a negative `at`, a `count` below 1.
    """

    def __init__(self, skips: Sequence[Skip] = ()) -> None:
        for index, skip in enumerate(skips):
            if skip.at < 0 or skip.count < 1:
                raise ConfigError(
                    f"skip[{index}]",
                    str(skip),
                    "at >= 0 and count >= 1",
                    f"set skip[{index}].at to 0 or more, and count to 1 or more",
                )
        self.skips = tuple(sorted(skips))
        if sum(skip.count for skip in skips) >= MAX_SKIPPED or any(skip.at >= MAX_SKIPPED for skip in skips):
            raise ConfigError(
                "skip",
                str(list(self.skips)[-1]),
                "fewer than 2**62 samples in all",
                "pass fewer samples in skip",
            )
        self._at = [skip.at for skip in self.skips]
        self._total = [0]
        for skip in self.skips:
            self._total.append(self._total[-1] + skip.count)
        self.arrays = np.array(self._at, np.uint64), np.array(self._total, np.uint64)
        self._first_after = [at + total for at, total in zip(self._at, self._total[1:], strict=True)]

    def global_index(self, t: int) -> int:
        """G of the trainer's sample t."""
        return t + self._total[bisect_right(self._at, t)]

    def global_indices(self, t: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """`global_index` of a uint64 array of any shape."""
        if not self.skips:
            return t
        at, total = self.arrays
        return t + total[np.searchsorted(at, t, side="right")]

    def trainer_indices(self, g: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """T of global samples, an int64 array; -1 where one is skipped."""
        passed = np.searchsorted(np.array(self._first_after, np.int64), g, side="right")
        t = g - np.array(self._total, np.int64)[passed]
        skipped = t >= np.array([*self._at, _NEVER], np.int64)[passed]
        return np.where(skipped, -1, t)
