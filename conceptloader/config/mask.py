"""Masks: tokens of a dataset that give no loss from a sample on, while every sample keeps its place in the order.

Their samples read nothing, or keep the rest; exclude.py makes them of a configuration.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.hashing import fingerprint
from conceptloader.format.read.bulk import pairs
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints

ALWAYS = -1
"""`at` of tokens that must not be read: before every sample, which distinguishes it from an exclusion at sample 0."""
NEVER = np.iinfo(np.int64).max


class Mask(NamedTuple):
    """Tokens [start, stop) of a dataset from the trainer's sample `at` on; int64 [n] each, ascending and disjoint."""

    start: Ints
    stop: Ints
    at: Ints

    @classmethod
    def of(cls, start: Ints, stop: Ints, at: Ints | int) -> "Mask":
        """Of ranges in any order, none of them empty: where several hold, the earliest."""
        if not len(start):
            return NOTHING
        at = np.broadcast_to(at, start.shape)
        bounds = np.unique(np.concatenate([start, stop]))
        since = np.full(len(bounds), NEVER)
        order = np.argsort(-at, kind="stable")
        low, high = np.searchsorted(bounds, start[order]).tolist(), np.searchsorted(bounds, stop[order]).tolist()
        for a, b, one in zip(low, high, at[order].tolist(), strict=True):
            since[a:b] = one
        change = np.flatnonzero(np.diff(since, prepend=NEVER))
        found = bounds[change], np.append(bounds[change[1:]], bounds[-1]), since[change]
        return cls(*(column[found[2] < NEVER] for column in found))

    def __or__(self, other: "Mask") -> "Mask":
        return Mask.of(*map(np.concatenate, zip(self, other, strict=True)))

    def chosen(self, some: NDArray[np.bool_]) -> "Mask":
        """Some of its ranges."""
        return Mask(*(column[some] for column in self))

    def since(self, start: Any, stop: Any) -> Any:
        """From which sample on any of tokens [start, stop) is masked, of one range or of many; NEVER for none."""
        low, high = np.searchsorted(self.stop, start, side="right"), np.searchsorted(self.start, stop)
        pairs = np.stack([low, np.maximum(low, high)], -1).reshape(-1)
        found = np.minimum.reduceat(np.append(self.at, NEVER), pairs)[::2] if len(pairs) else pairs
        found = np.where(low < high, found.reshape(np.shape(low)), NEVER)
        return found if found.ndim else int(found)

    def ranges(self, at: int) -> list[tuple[int, int]]:
        """Those that are masked from `at` on, ALWAYS or a sample."""
        some = self.at == at
        return list(zip(self.start[some].tolist(), self.stop[some].tolist(), strict=True))

    def prints(self) -> dict[int, str]:
        """`at` -> fingerprint of what is masked from there on; ascending."""
        return {at: fingerprint(self.ranges(at)) for at in np.unique(self.at).tolist()}

    def most(self, tokens: int) -> int:
        """The most of its ranges that begin in any `tokens` tokens."""
        return int((np.searchsorted(self.start, self.start + tokens) - np.arange(len(self.start))).max(initial=0))

    def pieces(self, start: Ints, stop: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """(which, start, stop, at): ranges [start, stop), cut where these begin and end; at: NEVER outside of these."""
        low, high = np.searchsorted(self.stop, start, side="right"), np.searchsorted(self.start, stop)
        inside = np.maximum(high - low, 0)
        which = np.repeat(np.arange(len(start)), 2 * inside + 1)
        first, end, at = start[which], stop[which], np.full(len(which), NEVER)
        of, mine = pairs(low, high)
        k = 2 * np.arange(len(mine)) + 1 + of  # what is between two of these has a place too, maybe empty
        first[k], end[k] = np.maximum(self.start[mine], start[of]), np.minimum(self.stop[mine], stop[of])
        at[k], end[k - 1], first[k + 1] = self.at[mine], first[k], end[k]
        kept = (first < end) | (start == stop)[which]
        return which[kept], first[kept], end[kept], at[kept]

    def closed(self, dataset: Dataset) -> NDArray[np.bool_]:
        """The shards of a dataset that are never read as a whole: their files, document tables too, are not opened.

        Those of a view's source never are, as a mask has tokens of the view.
        """
        if dataset.runs is not None or not (self.at < 0).any():
            return np.zeros(dataset.num_shards, np.bool_)
        start, stop = np.array(dataset.shard_starts[:-1]), np.array(dataset.shard_starts[1:])
        k = np.searchsorted(self.stop, stop)
        last = np.minimum(k, len(self.stop) - 1)
        covered: NDArray[np.bool_] = (k == last) & (self.start[last] <= start) & (self.at[last] < 0)
        return covered


NOTHING = Mask(*(np.zeros(0, np.int64) for _ in range(3)))
