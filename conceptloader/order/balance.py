"""Samples of a step dealt so that all ranks have about equal work: a permutation of each global batch, of nothing else.

Where attention ends at documents, the work of samples of one length differs by the sum of the squares of the lengths of
their documents, their cost. Costs are integers, so every rank computes the same permutation, without a message.
"""

import threading
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from conceptloader.kernels.kernel import I64Array, U64Array

Costs = Callable[[U64Array], I64Array]
"""Of trainer samples uint64 [n]: int64 [n]."""

_STEPS = 16  # that are kept: more than are read at a time


def deal(costs: Sequence[int], micro_batch_size: int, dp_size: int) -> list[list[list[int]]]:
    """Which samples of a step each rank takes, in its micro batches: numbers of samples by rank and micro batch.

    Each sample, the most costly first, goes to the lightest micro batch with room; these go to ranks likewise (longest
    processing time first: R. L. Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17, 1969). The
    most costly micro batches of a rank are in its middle, where a pipeline is full. Ties go by number.

    costs: of the samples of a whole number of micro batches for all ranks.
    """
    groups = len(costs) // (micro_batch_size * dp_size)
    micro = _lightest_first(costs, groups * dp_size, micro_batch_size)
    sums = [sum(costs[sample] for sample in one) for one in micro]
    ranks = []
    for mine in _lightest_first(sums, dp_size, groups):
        rising = sorted(mine, key=lambda one: (sums[one], one))
        ranks.append([sorted(micro[one]) for one in rising[::2] + rising[1::2][::-1]])
    return ranks


def imbalance(costs: Sequence[int], partition: Any) -> tuple[float, float]:
    """The cost of the rank that has most of a step, over the mean: as a Partition has it, and as it is dealt.

    costs: as in `deal`.
    """
    ranks, whole = partition.dp_size, sum(costs) or 1
    come = [sum(costs[k] for k in partition.samples(0, len(costs), rank).ravel().tolist()) for rank in range(ranks)]
    given = deal(costs, partition.micro_batch_size, ranks)
    dealt = [sum(costs[sample] for one in mine for sample in one) for mine in given]
    return max(come) * ranks / whole, max(dealt) * ranks / whole


def _lightest_first(weights: Sequence[int], boxes: int, room: int) -> list[list[int]]:
    """The numbers of the weights in each box, of which each has room for so many."""
    found: list[list[int]] = [[] for _ in range(boxes)]
    open_ones = [(0, box) for box in range(boxes)]
    for number in sorted(range(len(weights)), key=lambda number: (-weights[number], number)):
        load, box = heappop(open_ones)
        found[box].append(number)
        if len(found[box]) < room:
            heappush(open_ones, (load + weights[number], box))
    return found


class Balance:
    """The permutations of the steps of a run. Safe to use from many threads, and to pickle if `costs` is."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._lock = threading.Lock()
        self._kept: dict[tuple[Any, ...], npt.NDArray[np.intp]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.costs,)

    def forget(self) -> None:
        """Other samples stand at positions that are still to come."""
        with self._lock:
            self._kept.clear()

    def order(self, partition: Any, start: int, stop: int) -> npt.NDArray[np.intp]:
        """Of the step [start, stop): the number in it of the sample that is trained at each of its positions."""
        key = partition, start, stop
        with self._lock:
            found = self._kept.get(key)
        if found is None:
            costs = self.costs(np.arange(start, stop, dtype=np.uint64)).tolist()
            found = np.empty(stop - start, np.intp)
            for rank, mine in enumerate(deal(costs, partition.micro_batch_size, partition.dp_size)):
                found[partition.samples(0, stop - start, rank).astype(np.intp)] = mine
            with self._lock:
                while len(self._kept) >= _STEPS:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = found
        return found
