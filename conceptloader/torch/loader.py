"""Batches for plain PyTorch: a loader that reads ahead."""

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from conceptloader.base.checks import as_count
from conceptloader.batch.open import open_reader
from conceptloader.batch.prefetch import Prefetcher
from conceptloader.blend import Blend, ConfigLike, open_blend
from conceptloader.errors import ConfigError, EndlessError, ResumeError
from conceptloader.kernels.kernel import U64Array
from conceptloader.order.partition import Partition, Plan, Scheme, Tail
from conceptloader.order.progress.runlog import RunLog, RunStart
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.progress.state import OrderState, saved_count
from conceptloader.order.schedule import BatchSchedule
from conceptloader.order.sequential import Sequential
from conceptloader.torch.agreement import require_same, start_facts
from conceptloader.torch.collate import TensorBatch, as_device, on_device, pinned_block, to_tensors
from conceptloader.torch.live import new_weights, require_agreement
from conceptloader.torch.metrics import Meter, callbacks

logger = logging.getLogger(__name__)


def make_dataloader(
    config: ConfigLike,
    *,
    dp_rank: int = 0,
    dp_size: int = 1,
    micro_batch_size: int,
    global_batch_size: int | BatchSchedule | None = None,
    consumed_samples: int = 0,
    num_samples: int | None = None,
    tail: Tail | None = None,
    scheme: Scheme = "strided",
    device: torch.device | str | None = None,
    collate: Callable[[TensorBatch], Any] | None = None,
    check_ranks: Any = False,
) -> "Loader":
    """The loader of one data-parallel rank.

    config: path of a YAML file, or what was read from one.
    dp_rank, dp_size: this rank among those that read different samples.
    micro_batch_size: samples of a batch as it is handed out.
    global_batch_size: samples of a step over all ranks: a number, a BatchSchedule, or one micro batch for each rank.
    consumed_samples: where to start, in samples over all ranks; load_state_dict sets it too, and checks the order. A
        global batch starts there.
    num_samples: end of the run; by default none, or the end of the data with order sequential.
    tail: what happens to a last global batch that is not full: "drop", "wrap" or "short"; by default "short" with order
        sequential, so that every window is read once, and else "drop". scheme: how ranks share a global batch. See
        order/partition.py.
    device: where the tensors are handed out, by default in the CPU's memory. To a CUDA device the next batch is copied,
        from page-locked memory, while the device works on the one before.
    collate: what makes of a batch that was read the one that is handed out, in the threads that read ahead. It may run
        in many at once. For a CUDA device it returns a dict, whose tensors are copied.
    check_ranks: True, or a torch.distributed group of all ranks that read this run. When they begin to read, the ranks
        compare their order, outputs and sizes, and raise ConfigError where these differ; see torch/agreement.py.

    Raises ConfigError, FormatError, ReadError.
    """
    size = global_batch_size or micro_batch_size * dp_size
    return Loader(
        open_blend(config),
        partition=Partition(micro_batch_size=micro_batch_size, dp_size=dp_size, scheme=scheme),
        dp_rank=dp_rank,
        schedule=size if isinstance(size, BatchSchedule) else BatchSchedule.constant(size),
        consumed_samples=consumed_samples,
        num_samples=num_samples,
        tail=tail,
        device=device,
        collate=collate,
        check_ranks=check_ranks,
    )


class Loader:
    """Iterates over the micro batches of one rank: dicts of tensors, as BatchLayout describes them.

    `for batch in loader` goes on where the last loop stopped, until the run ends. With order sequential each loop
    starts at the beginning, but for the first one after load_state_dict, which goes on there.
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
        tail: Tail | None = None,
        device: torch.device | str | None = None,
        collate: Callable[[TensorBatch], Any] | None = None,
        check_ranks: Any = False,
    ) -> None:
        self.blend = blend
        self.check_ranks = check_ranks
        self.device = as_device(device)
        self._collate = collate
        self.partition = partition
        self.dp_rank = dp_rank
        self._again = isinstance(blend.order, Sequential)  # each loop is a pass of its own
        self._schedule = schedule
        self._tail: Tail = tail if tail is not None else "short" if self._again else "drop"
        self._ahead: Prefetcher[tuple[U64Array, int], TensorBatch] | None = None
        self._log: tuple[str | os.PathLike[str], BatchSchedule] | None = None
        self.measured = True  # False: no metrics of this one, as in evaluation
        self.num_samples = num_samples
        if isinstance(blend.order, Sequential) and num_samples is None:
            self.num_samples = blend.order.num_samples
        partition.check_rank(dp_rank)
        self._begin(as_count(consumed_samples, "consumed_samples", 0))
        if self.num_samples is not None:
            blend.order.check_run(self.num_samples)
            if not len(self):
                raise ConfigError(
                    f"num_samples: found {self.num_samples}, less than a global batch of {schedule.batch_size(0)}: "
                    "nothing would be read; lower global_batch_size, or set tail to short"
                )
        self._reader = open_reader(blend, dp_rank)
        if blend.config.phases and dp_rank == 0:
            blend.look_ahead(self._consumed)

    def __repr__(self) -> str:
        config, partition = self.blend.config, self.partition
        what = f"micro batches of {partition.micro_batch_size} samples of {config.seq_len:,} tokens"
        end = "without end" if self.num_samples is None else f"of {self.num_samples:,}"
        where = f"rank {self.dp_rank} of {partition.dp_size}, at sample {self._consumed:,} {end}"
        return f"<Loader of {', '.join(config.names)}: {what}, {where}>"

    @property
    def consumed_samples(self) -> int:
        """Samples that were handed out, over all ranks, since the first one of the run."""
        return self._consumed

    @property
    def plan(self) -> Plan:
        """Steps, micro batches and ranks of the run from where this loader began."""
        return self._plan

    def __getstate__(self) -> dict[str, Any]:
        """A copy stands where this loader stands, without its loop, and compares itself with no others."""
        return {**self.__dict__, "_ahead": None, "check_ranks": False}

    @property
    def samples_without_loss(self) -> int:
        """How many that this rank has read, ahead ones included, have a loss mask that is all 0."""
        return self._reader.samples_without_loss

    def _begin(self, consumed: int, step_start: int | None = None) -> None:
        """Stand at `consumed`, in the global batch that began at `step_start`. Changes nothing if it raises."""
        plan = Plan(
            partition=self.partition,
            schedule=self._schedule.at(0, consumed),
            num_samples=self.num_samples,
            tail=self._tail,
        )
        self._plan = plan if step_start is None else plan.resumed(consumed, step_start)
        self._consumed, self._fresh = consumed, True
        self._behind = consumed  # the batch that is about to be yielded

    def __len__(self) -> int:
        """Micro batches of this rank in the whole run (a pass, with order sequential), consumed ones included.

        That is what trainers mean by the length of an epoch. After a change of batch sizes, what is behind counts in
        the present ones, rounded down. Raises EndlessError, a TypeError, for a run without num_samples.
        """
        count = self._plan.count()
        if count is None:
            raise EndlessError(
                "Loader: a run without an end has no length; give make_dataloader num_samples, or count steps"
            )
        return count

    def __bool__(self) -> bool:
        """True, also without a length."""
        return True

    def __getitem__(self, index: Any) -> NoReturn:
        """For torch's DataLoader, which takes it for a dataset."""
        raise ConfigError(
            f"Loader: found a request for item {index}, as by torch's DataLoader(loader) or a trainer that wraps one; "
            "a Loader hands out whole batches: iterate over it as it is, or wrap conceptloader.SampleDataset"
        )

    def __iter__(self) -> Iterator[TensorBatch]:
        """The micro batches from `consumed_samples` on. A new iterator ends the one before.

        Raises ConfigError for another loop after the end of the run.
        """
        if self._ahead is not None:
            self.close()
        if self._again and not self._fresh:
            self._begin(0)
        if self._plan.stop is not None and self._consumed >= self._plan.stop:
            # A loop that would read nothing; the first one of a run that had ended says so.
            if self._again:
                raise ConfigError(
                    f"Loader: the loaded state is that of the end of a pass, at {self._consumed} samples, and a loop "
                    "would read nothing; for the next pass load state_at(0), to end this one leave the loop out"
                )
            ended = f"the run of num_samples={self.num_samples} samples has ended at {self._consumed}"
            if not self._fresh:
                raise ConfigError(
                    f"Loader: {ended}, and a second loop would read nothing; for another epoch make a loader with a "
                    "larger num_samples, or without, and load this one's state_dict: epochs follow each other in one "
                    "run"
                )
            logger.warning("%s: nothing is left to read", ended)
        self._compare_ranks()
        self._fresh, self._behind = False, self._consumed
        options, reader, collate = self.blend.config.loader, self._reader, self._collate or (lambda batch: batch)
        on_cuda = self.device.type == "cuda"
        allocate = pinned_block if on_cuda or (options.pin_memory and torch.cuda.is_available()) else None
        ahead = self._ahead = Prefetcher(
            lambda task: collate(to_tensors(reader.read(task[0], allocate))),
            self._plan.rest(self.dp_rank, self._consumed),
            threads=options.threads,
            depth=options.prefetch,
            most=options.prefetch_bytes // reader.layout.carve(self.partition.micro_batch_size).size,
            warn_after_s=options.warn_after_s,
            timeout_s=options.timeout_s,
            where=reader.where,
            name=f"conceptloader, dp_rank {self.dp_rank}",
        )
        steps = self._plan.schedule if self._log is None else self._log[1]
        meter = Meter(steps, self._plan.stop) if callbacks and self.measured else None
        for (_, consumed), batch in on_device(ahead, self.device, self._collate is None) if on_cuda else ahead:
            self._behind = consumed
            if meter is not None:
                meter.took(self.blend, consumed, ahead.waited_s, ahead.ready)
            self._consumed = consumed  # last: a batch that a callback's error or Ctrl-C holds back is read again
            yield batch
        if self._again:
            self._begin(0)

    def _compare_ranks(self) -> None:
        """Raise ConfigError if other ranks are about to read another run, or another part of it."""
        if self.check_ranks is False or not self._fresh:
            return
        share, sizes = self.partition, self._schedule.to_list()
        if share.dp_size > 1 and not (dist.is_available() and dist.is_initialized()):
            raise ConfigError(
                f"check_ranks: found no process group with dp_size {share.dp_size}; call "
                "torch.distributed.init_process_group before the first batch, or leave check_ranks out"
            )
        run = {"consumed_samples": self._consumed, "num_samples": self.num_samples, "tail": self._plan.tail}
        facts = start_facts(self.blend, partition=asdict(share), global_batch_size=sizes, **run)
        require_same("training data", facts, None if self.check_ranks is True else self.check_ranks)

    def close(self) -> None:
        """End the threads of the current iterator. The loader stays usable."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, str]:
        """The state after the last batch that was handed out: one string, equal on all ranks; see progress/state.py."""
        return self.state_at(self._consumed)

    def state_at(self, consumed_samples: int) -> dict[str, str]:
        """The state after `consumed_samples` samples over all ranks, as state_dict would give it there.

        For trainers that read ahead: save what they have trained, not what was handed out.

        Raises ConfigError beyond the end, and for a position between the borders of micro batches, which are
        micro_batch_size * dp_size apart from where this loader began; before that, any position may have been one.
        """
        consumed = as_count(consumed_samples, "consumed_samples", 0)
        more = {"step_start": self._plan.step_start(consumed)}
        return OrderState(spec=self.blend.spec, consumed=consumed, more=more).leaf()

    def load_state_dict(
        self, state: Mapping[str, Any], *, allow_changed: Collection[str] = (), new_stage: bool = False
    ) -> None:
        """Go on where `state` was saved, with any dp_size, micro_batch_size and global_batch_size.

        allow_changed, new_stage: see progress/resume.py. Raises ResumeError if what decided past samples has changed,
        or the state is damaged or was edited; the loader then stands where it stood.
        """
        where = "loader state"
        saved = OrderState.read(state, where)
        consumed = saved.position(where)
        if self.num_samples is not None and consumed > self.num_samples:
            raise ResumeError(
                f"{where}: saved at {consumed} consumed samples, beyond num_samples={self.num_samples}; raise it"
            )
        blend = self.blend.resume(saved.spec, consumed, allow_changed=allow_changed, new_stage=new_stage)
        reader = open_reader(blend, self.dp_rank)
        step_start = saved_count(saved.more, "step_start", where) if "step_start" in saved.more else consumed
        self._begin(consumed, step_start)
        self.close()
        self.blend, self._reader = blend, reader

    def log_start(self, directory: str | os.PathLike[str], step: int) -> None:
        """Append this start of the run to the run log beside the checkpoints, so that steps can be traced to samples.

        To be called once by every rank after loading the state; only dp_rank 0 writes.
        step: of the trainer, counted from 0, that the next micro batch belongs to.
        """
        self._log = directory, self._schedule.at(step, self.consumed_samples)
        self._write_start(self.blend.spec)

    def _write_start(self, spec: OrderSpec) -> None:
        if self.dp_rank or self._log is None:
            return
        directory, schedule = self._log
        step = schedule.step_of(self.consumed_samples)
        here = schedule.at(step, schedule.consumed_at(step))
        RunLog(directory).append(RunStart.of(spec, here, self.partition, self.blend.config.seq_len), spec)

    def set_weights(
        self, weights: Mapping[str, float], at: int | None = None, *, group: Any = None, agree: bool = True
    ) -> int:
        """Draw datasets in other proportions from the sample `at` on: a phase that is set while the run is going.

        To be called by every data-parallel rank between the same two micro batches, with the same arguments. The phase
        is in the state from now on, and in the run log once log_start has been called: a resumed run keeps it. It lasts
        until weights are set again, or the next phase of the configuration.

        weights: dataset -> number above 0; datasets that are left out are not drawn. at: sample over all ranks; by
        default the first step that no rank has begun to read.
        group: the torch.distributed group of the data-parallel ranks, by default all processes; where it is
        initialized, ranks compare what they are about to do, and agree=False leaves that out.

        Returns: the sample from which on it holds.

        Raises ConfigError, and nothing is changed: for unknown or absent datasets, weights that are none, an `at` that
        may have been read already or is not behind weights set before, ranks that differ; ReadError for the run log.
        """
        edge = self._behind + (self.blend.config.loader.prefetch + 1) * self.partition.group
        start, blend = new_weights(self.blend, weights, self._plan, edge, at)
        if agree:
            require_agreement(start, self._consumed, blend.spec, self.partition.dp_size, group)
        self._write_start(blend.spec)
        self._reader.follow(blend.order)
        if self._ahead is not None:  # more may have been read than `prefetch`
            self._ahead.renew(lambda task: int(task[0].max(initial=0)) >= start)
        self.blend = blend
        return start
