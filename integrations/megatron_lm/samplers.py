"""Which samples a data-parallel rank reads: pure functions of the number of consumed samples.

Megatron's `single` sampler walks range(consumed, total), which is all that an O(1) order needs. `cyclic` draws a list
of the whole epoch with torch.randperm on every rank, shares it out by rank, and refuses to resume off the grid of the
old batch size; `Cyclic` takes its place.
"""

from collections.abc import Iterator
from typing import Any

from conceptloader.base.hashing import derive_key
from conceptloader.errors import ConfigError
from conceptloader.order.permutation import Permutation


class Contiguous:
    """A batch sampler over range(consumed, total): each rank takes a run of micro_batch_size samples in turn.

    As Megatron's MegatronPretrainingSampler (--dataloader-type single): a last incomplete group is dropped.
    """

    def __init__(self, *, total: int, consumed: int, micro_batch_size: int, dp_rank: int, dp_size: int) -> None:
        if not 0 <= dp_rank < dp_size:
            raise ConfigError(f"sampler: found dp_rank {dp_rank}, expected 0 <= dp_rank < {dp_size}")
        self.total, self.consumed = total, consumed
        self.micro_batch_size, self.dp_rank, self.dp_size = micro_batch_size, dp_rank, dp_size

    def __len__(self) -> int:
        return max(0, self.total - self.consumed) // (self.micro_batch_size * self.dp_size)

    def __iter__(self) -> Iterator[list[int]]:
        group = self.micro_batch_size * self.dp_size
        for start in range(self.consumed, self.total - group + 1, group):
            first = start + self.dp_rank * self.micro_batch_size
            yield list(range(first, first + self.micro_batch_size))


class Cyclic:
    """A batch sampler over endless epochs, each in an order of its own, resumable at any sample with any dp size.

    Position p of the run is sample permutation(epoch = p // total)(p % total); each step of micro_batch_size * dp_size
    positions is split into contiguous runs of micro_batch_size, as `single` does. A step may straddle two epochs: none
    is cut short, and none starts over on a resume.

    Args:
        total: samples in an epoch.
        consumed: samples the trainer has consumed, of all ranks and epochs.
        seed: the config's seed.
    """

    def __init__(
        self, *, total: int, consumed: int, micro_batch_size: int, dp_rank: int, dp_size: int, seed: int
    ) -> None:
        if total < 1:
            raise ConfigError(f"cyclic sampler: found {total} samples, expected at least 1")
        if not 0 <= dp_rank < dp_size:
            raise ConfigError(f"cyclic sampler: found dp_rank {dp_rank}, expected 0 <= dp_rank < {dp_size}")
        self.total = total
        self.consumed = consumed
        self.micro_batch_size = micro_batch_size
        self.dp_rank = dp_rank
        self.dp_size = dp_size
        self.seed = seed

    def __len__(self) -> int:
        return self.total  # what Megatron's own samplers answer: samples, not batches

    def __iter__(self) -> Iterator[list[int]]:
        epoch, order = -1, Permutation(1)
        position = self.consumed + self.dp_rank * self.micro_batch_size
        while True:
            batch = []
            for p in range(position, position + self.micro_batch_size):
                if p // self.total != epoch:
                    epoch = p // self.total
                    order = Permutation(self.total, derive_key(self.seed, "megatron cyclic", epoch))
                batch.append(order.forward(p % self.total))
            yield batch
            position += self.micro_batch_size * self.dp_size


def cyclic_sampler(stock: Any, seed_of: Any) -> Any:
    """A stand-in for MegatronPretrainingRandomSampler that leaves datasets which are not ours (mock data) to it.

    Args:
        stock: Megatron's class.
        seed_of: callable giving the seed of a dataset of ours, or None for any other.
    """

    def sampler(
        dataset: Any,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        data_sharding: bool,
    ) -> Any:
        seed = seed_of(dataset)
        if seed is None:
            return stock(
                dataset,
                total_samples,
                consumed_samples,
                micro_batch_size,
                data_parallel_rank,
                data_parallel_size,
                data_sharding,
            )
        return Cyclic(
            total=total_samples,
            consumed=consumed_samples,
            micro_batch_size=micro_batch_size,
            dp_rank=data_parallel_rank,
            dp_size=data_parallel_size,
            seed=seed,
        )

    return sampler
