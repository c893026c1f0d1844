"""Which sample of a step goes to which micro batch, rank and slot, and back: pure functions of the sample index.

Every framework cuts the global batch into groups of micro_batch_size * dp_size consecutive samples, one group a micro
batch; they differ only in how a group is assigned. So the samples of a step are the same for any number of ranks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from conceptloader.base.checks import as_count
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.kernels.kernel import U64Array
from conceptloader.order.balance import Balance
from conceptloader.order.schedule import BatchSchedule

Scheme = Literal["contiguous", "strided"]
LastBatch = Literal["drop", "wrap", "partial"]


class Place(NamedTuple):
    """Where a sample is trained: step and micro batch (from 0), data-parallel rank, position in the micro batch."""

    step: int
    micro_batch: int
    dp_rank: int
    slot: int


class Places(NamedTuple):
    """Place of many samples: four int64 arrays of one shape."""

    step: npt.NDArray[np.int64]
    micro_batch: npt.NDArray[np.int64]
    dp_rank: npt.NDArray[np.int64]
    slot: npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Partition:
    """How a global batch is assigned to data-parallel ranks.

    Attributes:
        micro_batch_size: Samples of a micro batch on one rank.
        dp_size: Ranks that read different samples.
        scheme: "strided": each rank takes every dp_size-th sample, `range(start + dp_rank, stop, dp_size)`: PyTorch's
            DistributedSampler without shuffling; with micro_batch_size 1 also Megatron's --full-validation.
            "contiguous": each rank takes a run of micro_batch_size samples of a group: what Megatron's
            MegatronPretrainingSampler (--dataloader-type single) does, and nanotron's sampler of the same name.

    Raises:
        ConfigError: For sizes below 1 or an unknown scheme.
    """

    micro_batch_size: int
    dp_size: int
    scheme: Scheme = "strided"
    group: int = field(init=False, repr=False, compare=False)
    """Samples that all ranks together take in one micro batch."""

    def __post_init__(self) -> None:
        as_count(self.micro_batch_size, "micro_batch_size")
        as_count(self.dp_size, "dp_size")
        if self.scheme not in get_args(Scheme):
            raise ConfigError(
                "partition scheme", repr(self.scheme), f"one of {get_args(Scheme)}", "omit scheme, or pass one of these"
            )
        object.__setattr__(self, "group", self.micro_batch_size * self.dp_size)

    @lru_cache(maxsize=64)  # noqa: B019 - asked for with every micro batch; a Partition is four words
    def offsets(self, dp_rank: int) -> U64Array:
        """Offsets in a group of the samples of `dp_rank`: uint64 [micro_batch_size], ascending, read-only."""
        self.check_rank(dp_rank)
        slots = np.arange(self.micro_batch_size, dtype=np.uint64)
        stride, first = (self.dp_size, dp_rank) if self.scheme == "strided" else (1, dp_rank * self.micro_batch_size)
        offsets: U64Array = slots * np.uint64(stride) + np.uint64(first)
        offsets.setflags(write=False)
        return offsets

    def samples(self, start: int, stop: int, dp_rank: int) -> U64Array:
        """Samples of `dp_rank` in the global batch [start, stop): uint64 [micro batches, micro_batch_size].

        Raises:
            ConfigError: If the batch is no whole number of groups.
        """
        self.check_batch(stop - start)
        groups = np.arange(start, stop, self.group, dtype=np.uint64)
        return groups[:, None] + self.offsets(dp_rank)

    def deal(self, offset: Any) -> tuple[Any, Any, Any]:
        """(micro_batch, dp_rank, slot) of the sample at `offset` in its global batch: an int, or an array of them."""
        micro_batch, rest = divmod(offset, self.group)
        if self.scheme == "strided":
            slot, dp_rank = divmod(rest, self.dp_size)
        else:
            dp_rank, slot = divmod(rest, self.micro_batch_size)
        return micro_batch, dp_rank, slot

    def check_batch(self, batch_size: int) -> None:
        """Raise ConfigError unless a global batch divides into micro batches for all ranks."""
        if batch_size % self.group:
            raise ConfigError(
                "global batch size",
                f"{batch_size}",
                f"a multiple of micro_batch_size {self.micro_batch_size} * dp_size {self.dp_size} = {self.group}",
                f"set global_batch_size to a multiple of {self.group}, or change micro_batch_size or dp_size",
            )

    def check_rank(self, dp_rank: int) -> None:
        """Raise ConfigError unless 0 <= dp_rank < dp_size."""
        if as_count(dp_rank, "dp_rank", 0) >= self.dp_size:
            raise ConfigError(
                "dp_rank", str(dp_rank), f"0 to {self.dp_size - 1} (dp_size {self.dp_size})", "pass dp_rank from 0 on"
            )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Steps, micro batches, ranks and slots of a run <-> trainer sample indices.

    Attributes:
        partition: How a global batch is divided among ranks.
        schedule: How many samples it has, by consumed samples.
        num_samples: End of a finite run or epoch; None for an endless one.
        last_batch: What happens to a last batch that is not full: "drop": it is not trained; "wrap": it is padded
            from sample 0 on, so that every rank gets full micro batches; "partial": its micro batches end early, on
            some ranks at zero samples (evaluation that counts each sample once).
        balance: Which sample of a step is trained at which of its positions; None for that of the same number. A last
            batch that is not full stays as it is.

    A later size is checked when it is asked for, since another machine may have taken over by then.

    Raises:
        ConfigError: If the first batch does not divide into micro batches for all ranks.
    """

    partition: Partition
    schedule: BatchSchedule
    num_samples: int | None = None
    last_batch: LastBatch = "drop"
    balance: Balance | None = field(default=None, repr=False, compare=False)
    stop_step: int | None = field(init=False, repr=False, compare=False)
    """One past the last step, None if the run is endless."""
    stop: int | None = field(init=False, repr=False, compare=False)
    """Samples consumed at the end, None if the plan is endless; fewer than num_samples with last_batch "drop"."""
    # Where micro batches end: after what pads a last batch.
    _end: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.partition.check_batch(self.schedule.batch_size(self.schedule.consumed))
        if self.last_batch not in get_args(LastBatch):
            raise ConfigError(
                "last_batch",
                repr(self.last_batch),
                f"one of {get_args(LastBatch)}",
                "omit last_batch, or set one of these",
            )
        stop_step = stop = end = None
        if self.num_samples is not None:
            as_count(self.num_samples, "num_samples", max(1, self.schedule.consumed))
            stop_step = self.schedule.step_of(self.num_samples)
            stop_step += self.schedule.consumed_at(stop_step) < self.num_samples and self.last_batch != "drop"
            end = self.schedule.consumed_at(stop_step)
            stop = min(end, self.num_samples)
            end = stop if self.last_batch == "partial" else end
        for name, value in (("stop_step", stop_step), ("stop", stop), ("_end", end)):
            object.__setattr__(self, name, value)

    def count(self) -> int | None:
        """Micro batches of a rank in the whole run, None if it is endless.

        What lies before this plan counts as if it had been read in micro batches of the present size, rounded down.
        """
        start, group = self.schedule.consumed, self.partition.group
        return None if self._end is None else start // group - (start - self._end) // group

    def rest(self, dp_rank: int, consumed: int) -> Iterator[tuple[U64Array, int]]:
        """(sample indices of `dp_rank`, samples consumed by all ranks after it) of each micro batch from `consumed` on.

        As micro_batches; with last_batch "partial" those are omitted in which no rank has a sample. With "wrap" the
        filled ones are uint64 [2, micro_batch_size]: sample indices, and the positions at which they are trained.
        """
        if self.stop is not None and consumed >= self.stop:
            return
        group, stretches = self.partition.group, self.schedule.stretches
        for (_, start, size), (_, stop, _) in zip(stretches, [*stretches[1:], (0, self._end, 0)], strict=True):
            if stop is not None and self._end is not None:
                stop = min(stop, self._end)
            if stop is not None and stop <= max(start, consumed):
                continue
            self.partition.check_batch(size)
            first = start + -(-max(0, consumed - start) // group) * group
            for before in count(first, group) if stop is None else range(first, stop, group):
                after = before + group if self.num_samples is None else min(before + group, self.num_samples)
                samples = self._micro_batch(before, dp_rank)
                if self.last_batch == "wrap" and before + group > after:
                    samples = np.stack([samples, self.partition.offsets(dp_rank) + np.uint64(before)])
                yield samples, after

    def step_start(self, consumed: int) -> int:
        """Samples consumed before the global batch that contains position `consumed`; `consumed` itself on a boundary.

        Before the plan, where batch sizes are not known, every position may have been between two.

        Raises:
            ConfigError: For a position that is no boundary of micro batches, or beyond the end.
        """
        start, group = self.schedule.consumed, self.partition.group
        if consumed <= start or consumed == self.stop:
            return consumed
        if self.stop is not None and consumed > self.stop:
            raise ConfigError(
                "consumed_samples",
                f"{consumed}",
                f"at most {self.stop}, where the run ends",
                "resume from an earlier checkpoint, or raise num_samples",
            )
        past = (consumed - start) % group
        if past:
            raise ConfigError(
                "consumed_samples",
                str(consumed),
                f"{consumed - past} or {consumed - past + group}, where micro batches of "
                f"{self.partition.micro_batch_size} on {self.partition.dp_size} ranks end",
                f"pass consumed_samples={consumed - past}, counted over all ranks",
            )
        return self.schedule.range_of(self.schedule.step_of(consumed))[0]

    def resumed(self, consumed: int, step_start: int) -> "Plan":
        """This plan from `consumed` on, in the middle of the global batch that began at `step_start`.

        Where micro batches do not divide the rest of that batch, another one starts at `consumed`.

        Raises:
            ResumeError: If more samples would then be dropped at the end of the run.
        """
        whole = replace(self.partition, micro_batch_size=1, dp_size=1)  # divides everything
        saved = replace(self, schedule=self.schedule.at(0, step_start), partition=whole)
        size = saved.schedule.batch_size(step_start)
        divides = all(n % self.partition.group == 0 for n in (size, consumed - step_start))
        if divides and step_start <= consumed < step_start + size:
            return replace(saved, partition=self.partition)
        shifted = replace(self, schedule=self.schedule.at(0, consumed))
        if saved.stop is not None and shifted.stop is not None and consumed < saved.stop > shifted.stop:
            raise ResumeError(
                "loader state",
                f"it was saved {consumed - step_start} samples into a global batch. Micro batches of "
                f"{self.partition.micro_batch_size} on {self.partition.dp_size} ranks cannot continue there, and a "
                f"global batch that starts there would drop {saved.stop - shifted.stop} samples at the run's end",
                fix="resume with micro batches that divide it, or from a state between two steps, or set last_batch to "
                "partial",
            )
        return shifted

    def consumed_at(self, step: int) -> int:
        """Samples consumed before a step: all of them, for those after the end."""
        consumed = self.schedule.consumed_at(step)
        return consumed if self.stop is None else min(consumed, self.stop)

    def range_of(self, step: int) -> tuple[int, int]:
        """[first, last + 1) of the positions of `step`; positions from num_samples on are the last batch's filling."""
        if self.stop_step is not None and step >= self.stop_step:
            raise ConfigError(
                f"step {step}",
                f"a run that ends before step {self.stop_step}, after {self.num_samples} samples",
                "a step of the run",
                "pass an earlier step, or raise num_samples",
            )
        return self.schedule.range_of(step)

    def micro_batches(self, step: int, dp_rank: int) -> list[U64Array]:
        """Trainer sample indices of `dp_rank` in `step`: one uint64 array a micro batch.

        Each has micro_batch_size entries, fewer (or none) only in the last step of a plan with last_batch "partial".
        """
        start, stop = self.range_of(step)
        self.partition.check_batch(stop - start)
        found = [self._micro_batch(before, dp_rank) for before in range(start, stop, self.partition.group)]
        return found if stop > (self.num_samples or stop) else [self.dealt(one) for one in found]

    def dealt(self, positions: U64Array) -> U64Array:
        """The samples that are trained at positions of full steps: uint64 like `positions`."""
        return self._dealt(positions, lambda order: order)

    def position(self, samples: U64Array) -> U64Array:
        """Where samples are trained: the inverse of `dealt`."""
        return self._dealt(samples, np.argsort)

    def _dealt(self, numbers: U64Array, of_step: Callable[[Any], Any]) -> U64Array:
        if self.balance is None or not len(numbers):
            return numbers
        found: U64Array = numbers.copy()
        _, first, size = self.schedule.steps_of(numbers)
        for start in np.unique(first).tolist():
            inside = first == np.uint64(start)
            stop = start + int(size[inside][0])
            if self.num_samples is None or stop <= self.num_samples:
                order: npt.NDArray[np.intp] = of_step(self.balance.order(self.partition, start, stop))
                found[inside] = order[(numbers[inside] - np.uint64(start)).astype(np.intp)] + np.uint64(start)
        return found

    def _micro_batch(self, before: int, dp_rank: int) -> U64Array:
        """Trainer sample indices of `dp_rank` in the group that begins at position `before`."""
        samples: U64Array = self.partition.offsets(dp_rank) + np.uint64(before)
        if self.num_samples is None or before + self.partition.group <= self.num_samples:
            return samples
        end = np.uint64(self.num_samples)
        found: U64Array = samples[samples < end] if self.last_batch == "partial" else samples % end
        return found

    def place(self, sample: int) -> Place | None:
        """Where a sample is trained, or what fills positions from num_samples on. None if it is not trained.

        Raises:
            ConfigError: For a sample before the start of the plan: the run log knows those.
        """
        step = self.schedule.step_of(sample)
        if self.stop_step is not None and step >= self.stop_step:
            return None
        start, stop = self.schedule.range_of(step)
        self.partition.check_batch(stop - start)
        position = int(self.position(np.array([sample], np.uint64))[0])
        return Place(step, *self.partition.deal(position - start))

    def places(self, samples: U64Array) -> Places:
        """place() of a uint64 array; step is -1 where a sample is not trained."""
        positions = self.position(samples)
        step, first, size = self.schedule.steps_of(positions)
        for batch_size in np.unique(size).tolist():
            self.partition.check_batch(batch_size)
        found = Places(*(part.astype(np.int64) for part in (step, *self.partition.deal(positions - first))))
        if self.stop_step is not None:
            found.step[found.step >= self.stop_step] = -1
        return found
