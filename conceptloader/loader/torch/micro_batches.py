"""The batch sampler of trainers that count micro batches themselves."""

from collections.abc import Iterator
from itertools import count

from torch.utils.data import Sampler

from conceptloader.errors import UnboundedLoaderError
from conceptloader.order.partition import Partition


class MicroBatches(Sampler[list[int]]):
    """A batch sampler: the micro batches of one data-parallel rank in [consumed, total), without end if total is None.

    Samples at the end that make no whole micro batch for every rank are dropped.
    """

    def __init__(self, partition: Partition, dp_rank: int, consumed: int, total: int | None = None) -> None:
        partition.check_rank(dp_rank)
        self.partition, self.dp_rank, self.consumed, self.total = partition, dp_rank, consumed, total

    def __len__(self) -> int:
        if self.total is None:
            raise UnboundedLoaderError(
                "MicroBatches", "len() of an order without an end", "a number of samples", "pass num_samples=N"
            )
        return max(0, self.total - self.consumed) // self.partition.group

    def __iter__(self) -> Iterator[list[int]]:
        group, offsets = self.partition.group, self.partition.offsets(self.dp_rank).tolist()
        start, total = self.consumed, self.total
        firsts = count(start, group) if total is None else range(start, total - group + 1, group)
        return ([first + offset for offset in offsets] for first in firsts)
