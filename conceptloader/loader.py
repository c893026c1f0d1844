"""Batches for plain PyTorch: a loader that reads ahead, and a dataset for torch's own DataLoader."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from .batch.open import open_reader
from .batch.prefetch import Prefetcher
from .batch.reader import U64Array
from .collate import Rows, TensorBatch, on_device, pinned_block, to_tensors
from .config import Blend, Config, load_config, open_blend
from .errors import ConfigError, ResumeError
from .order.checks import as_count
from .order.partition import Partition, Plan, Scheme, Tail
from .order.runlog import RunLog, RunStart
from .order.schedule import BatchSchedule
from .order.sequential import Sequential

STATE_VERSION = 1

Task = tuple[U64Array, int]
"""A micro batch: its sample indices, and the samples that all ranks have consumed after it."""

ConfigLike = Config | Blend | Mapping[str, Any] | str | os.PathLike[str]


def open_config(config: ConfigLike) -> Blend:
    """An open configuration from a YAML file's path, its content, a Config, or as it is."""
    if isinstance(config, Blend):
        return config
    return open_blend(config if isinstance(config, Config) else load_config(config))


def make_dataloader(
    config: ConfigLike,
    *,
    dp_rank: int = 0,
    dp_size: int = 1,
    micro_batch_size: int,
    global_batch_size: int | BatchSchedule | None = None,
    consumed_samples: int = 0,
    num_samples: int | None = None,
    tail: Tail = "drop",
    scheme: Scheme = "strided",
    device: torch.device | str | None = None,
) -> "Loader":
    """The loader of one data-parallel rank.

    config: path of a YAML file, or what was read from one.
    dp_rank, dp_size: this rank among those that read different samples.
    micro_batch_size: samples of a batch as it is handed out.
    global_batch_size: samples of a step over all ranks: a number, a BatchSchedule, or one micro batch for each rank.
    consumed_samples: where to start, in samples over all ranks; load_state_dict sets it too, and checks the order.
    num_samples: end of the run; by default none, or the end of the data with order sequential.
    tail: what happens to a last global batch that is not full; scheme: how ranks share one; see order/partition.py.
    device: where the tensors are handed out, by default in the CPU's memory. To a CUDA device the next batch is copied,
        from page-locked memory, while the device works on the one before.

    Raises ConfigError, FormatError, ReadError.
    """
    return Loader(
        open_config(config),
        partition=Partition(micro_batch_size=micro_batch_size, dp_size=dp_size, scheme=scheme),
        dp_rank=dp_rank,
        schedule=global_batch_size
        if isinstance(global_batch_size, BatchSchedule)
        else BatchSchedule.constant(global_batch_size or micro_batch_size * dp_size),
        consumed_samples=consumed_samples,
        num_samples=num_samples,
        tail=tail,
        device=device,
    )


class Loader:
    """Iterates over the micro batches of one rank: dicts of tensors, as BatchLayout describes them.

    `for batch in loader` goes on where the last loop stopped; a finite order that was read to its end starts again.
    Every micro batch that was handed out counts as consumed, on all ranks alike; what was read ahead does not.
    """

    def __init__(
        self,
        blend: Blend,
        *,
        partition: Partition,
        dp_rank: int,
        schedule: BatchSchedule,
        consumed_samples: int = 0,
        num_samples: int | None = None,
        tail: Tail = "drop",
        device: torch.device | str | None = None,
    ) -> None:
        self.blend = blend
        self.device = torch.device(device or "cpu")
        self.partition = partition
        self.dp_rank = dp_rank
        self.consumed_samples = as_count(consumed_samples, "consumed_samples", 0)
        self._schedule, self._tail = schedule, tail
        self._ahead: Prefetcher[Task, TensorBatch] | None = None
        self.num_samples = num_samples
        if isinstance(blend.order, Sequential) and num_samples is None:
            self.num_samples = blend.order.num_samples
        partition.check_rank(dp_rank)
        self._plan()
        if self.num_samples is not None:
            blend.order.check_run(self.num_samples)
        self._reader = open_reader(blend, dp_rank)

    def _plan(self) -> Plan:
        """The steps from here on."""
        return Plan(
            partition=self.partition,
            schedule=self._schedule.at(0, self.consumed_samples),
            num_samples=self.num_samples,
            tail=self._tail,
        )

    def __iter__(self) -> Iterator[TensorBatch]:
        """The micro batches from `consumed_samples` on. A new iterator ends the one before."""
        self.close()
        options, reader = self.blend.config.loader, self._reader
        on_cuda = self.device.type == "cuda"
        allocate = pinned_block if on_cuda or (options.pin_memory and torch.cuda.is_available()) else None
        ahead = self._ahead = Prefetcher(
            lambda task: to_tensors(reader.read(task[0], allocate)),
            _tasks(self._plan(), self.dp_rank),
            threads=options.threads,
            depth=options.prefetch,
            warn_after_s=options.warn_after_s,
            timeout_s=options.timeout_s,
            where=reader.where,
            name=f"conceptloader, dp_rank {self.dp_rank}",
        )
        for (_, consumed), batch in on_device(ahead, self.device) if on_cuda else ahead:
            self.consumed_samples = consumed
            yield batch
        if isinstance(self.blend.order, Sequential):
            self.consumed_samples = 0

    def close(self) -> None:
        """End the threads of the current iterator. The loader stays usable."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON, equal on all ranks: samples consumed over all ranks, and the order spec that decided them."""
        spec = self.blend.spec
        return {
            "version": STATE_VERSION,
            "consumed_samples": self.consumed_samples,
            "spec": spec.to_dict(),
            "spec_hash": spec.hash,
        }

    def load_state_dict(
        self, state: Mapping[str, Any], *, allow_changed: Collection[str] = (), new_stage: bool = False
    ) -> None:
        """Go on where `state` was saved, with any dp_size, micro_batch_size and global_batch_size.

        allow_changed, new_stage: see order/resume.py. Raises ResumeError if what decided past samples has changed, or
        the state is damaged.
        """
        consumed = state.get("consumed_samples")
        if state.get("version") != STATE_VERSION or not isinstance(consumed, int) or consumed < 0:
            raise ResumeError(
                f"loader state: found version {state.get('version')!r} and consumed_samples {consumed!r}, expected "
                f"version {STATE_VERSION} and 0 or more; was it saved by this loader?"
            )
        self.close()
        self.blend = self.blend.resume(
            state.get("spec", {}), consumed, allow_changed=allow_changed, new_stage=new_stage
        )
        self._reader = open_reader(self.blend, self.dp_rank)
        self.consumed_samples = consumed

    def log_start(self, directory: str | os.PathLike[str], step: int) -> None:
        """Append this start of the run to the run log beside the checkpoints, so that steps can be traced to samples.

        To be called once by every rank after loading the state; only dp_rank 0 writes.
        step: of the trainer, counted from 0, that the next micro batch belongs to.
        """
        if self.dp_rank:
            return
        spec = self.blend.spec
        start = RunStart(
            step=step,
            consumed=self.consumed_samples,
            batch=self._schedule.to_list(),
            micro_batch_size=self.partition.micro_batch_size,
            dp_size=self.partition.dp_size,
            scheme=self.partition.scheme,
            seq_len=self.blend.config.seq_len,
            spec=spec.hash,
        )
        RunLog(directory).append(start, spec)


def _tasks(plan: Plan, dp_rank: int) -> Iterator[Task]:
    """All micro batches of a rank."""
    step, stop = plan.start_step, plan.stop_step
    while stop is None or step < stop:
        consumed = plan.range_of(step)[0]
        for samples in plan.micro_batches(step, dp_rank):
            consumed += plan.partition.group
            yield samples, consumed if plan.num_samples is None else min(consumed, plan.num_samples)
        step += 1


class SampleDataset(Dataset[TensorBatch]):
    """The samples of a configuration by the trainer's sample index: map-style, for torch's DataLoader.

    Index t is any integer from 0 on; the order is shuffled and blended already, so that a sampler only deals t out
    (EpochSampler). With collate_fn=conceptloader.collate_fn a batch arrives as it was read. For workers of any
    start method: it pickles, and it may be used by many threads.

    num_samples: what len() says; by default the samples of all datasets together.
    """

    def __init__(self, config: ConfigLike, num_samples: int | None = None) -> None:
        self.blend = open_config(config)
        self._reader = open_reader(self.blend)
        self.num_samples = sum(self.blend.order.sizes) if num_samples is None else as_count(num_samples, "num_samples")

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> TensorBatch:
        sample: TensorBatch = self.__getitems__([index])[0]
        return sample

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        """Samples by index; read together, and kept together for `collate_fn`."""
        if len(indices) and min(indices) < 0:
            raise ConfigError(f"sample index: found {min(indices)}, expected 0 or more")
        batch = self._reader.read(np.array(indices, np.uint64))
        return Rows(self._reader.layout, to_tensors(batch))
