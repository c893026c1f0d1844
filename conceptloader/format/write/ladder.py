"""The largest number of spans that any window of 2**k tokens touches, without looking at every window."""

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
