"""The largest number of spans that any window of 2**k tokens touches, without looking at every window."""

import numpy as np

from conceptloader.format.spec.columns import Ints

STEPS = 21
REACH = 1 << (STEPS - 1)  # windows up to this many tokens are counted exactly


class Ladder:
    """counts[k] for k = 0..20, over all runs seen so far.

    The shortest window that touches c consecutive runs goes from the last token of the first to the first token of
    the last: it has `start[j + c - 1] - end[j] + 2` tokens. So 2**k tokens can touch c runs if the minimum over j is
    at most 2**k, and the largest such c is found by doubling and halving, starting from what is known already.
    """

    def __init__(self) -> None:
        self.counts = [0] * STEPS

    def add(self, starts: Ints, ends: Ints) -> None:
        """Count the runs [start, end), int64 [n] each, in order and disjoint. Overlapping calls are harmless."""
        n = len(starts)

        def fits(count: int, window: int) -> bool:
            if count == 1:
                return True
            return bool((starts[count - 1 :] - ends[: n - count + 1]).min() + 2 <= window)

        least = 0
        for k in range(STEPS):
            low = max(least, self.counts[k])
            if low < n and fits(low + 1, 1 << k):
                low += 1
                high = 2 * low
                while high <= n and fits(high, 1 << k):
                    low, high = high, 2 * high
                high = min(high, n + 1)
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if fits(middle, 1 << k) else (low, middle)
            least = self.counts[k] = low

    def merge(self, counts: "list[int] | tuple[int, ...]") -> None:
        self.counts = [max(a, b) for a, b in zip(self.counts, counts, strict=True)]


class BorderLadder:
    """The windows that cross shard borders: feed the runs near each border, in the order of the shards.

    Keeps where the runs of the last 2**20 tokens end; together with the per-shard ladders the result is exact. Where
    they start is of no interest: a window whose last run is one of them was counted when that run's shard was added.
    """

    def __init__(self) -> None:
        self.ladder = Ladder()
        self._ends = np.empty(0, np.int64)
        self._tokens = 0  # of the dataset so far

    def add_shard(self, tokens: int, head: tuple[Ints, Ints], tail: Ints) -> None:
        """head: runs (starts, ends) that touch the first min(tokens, 2**20) tokens, tail: ends of those that touch the
        last, in shard tokens. For a shard of at most 2**20 tokens both are all of its runs."""
        base = self._tokens
        starts = np.concatenate([self._ends, head[0] + base])
        ends = np.concatenate([self._ends, head[1] + base])
        if base and len(head[0]):
            self.ladder.add(starts, ends)
        self._tokens = base + tokens
        if tokens <= REACH:
            self._ends = ends[ends > self._tokens - REACH]
        else:
            self._ends = tail + base
