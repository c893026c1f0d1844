"""Batches for plain PyTorch: a loader that prefetches."""

import logging
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch

from conceptloader.errors import ConfigError
from conceptloader.loader.batch.layout import Batch
from conceptloader.loader.batch.loader import BaseLoader
from conceptloader.loader.torch.agreement import GroupRanks, grouped, require_same
from conceptloader.loader.torch.collate import TensorBatch, as_device, on_device, pinned_block, to_tensors
from conceptloader.loader.torch.losses import DatasetLosses
from conceptloader.run.ranks import Ranks

logger = logging.getLogger(__name__)


class Loader(BaseLoader[TensorBatch]):
    """Iterates over the micro batches of one data-parallel rank: dicts of tensors, see docs/batch-keys.md.

    `for batch in loader` resumes where the last loop stopped, until the run ends. With order sequential each loop
    starts at the beginning, except for the first one after load_state_dict, which resumes there. Every micro batch that
    was yielded counts as consumed, on all ranks; prefetched ones do not.

    Args:
        config: Path of a YAML file, what was read from one, a Config, or a Blend.
        dp_rank: This rank among those that read different samples, from 0; by default 0.
        dp_size: How many ranks read different samples; by default 1. In a torch.distributed group of several processes
            both have to be given.
        micro_batch_size: Samples of a batch that is yielded.
        global_batch_size: Samples of a step over all ranks: a number, a BatchSchedule, or one micro batch for each
            rank.
        consumed_samples: Where to start, in samples over all ranks; load_state_dict and `continue_from` in the
            configuration set it too, and check the order. A global batch starts there.
        num_samples: End of the run; by default none, or the end of the data with order sequential.
        epoch_samples: A loop ends at each multiple of it, counted from where the run was continued with
            `continue_from`, and `len` counts its micro batches; by default the run is one epoch. The order runs through
            epochs of this kind: they divide nothing else.
        last_batch: What happens to a last global batch that is not full: "drop" or "partial", with order sequential
            also "wrap"; by default "partial" with order sequential, so that every window is read once, else "drop".
        scheme: How ranks share a global batch: "strided" or "contiguous". See conceptloader.adapters.Partition.
        device: Of the tensors that are yielded, by default the CPU. For a CUDA device the next batch is copied, from
            pinned memory, while the device works on the current one.
        batch_transform: Called with each batch, concurrently in the reader threads; what it returns is yielded. With a
            CUDA `device` it returns a dict, whose tensors are copied.
        allow_changed: Names of differences from the past to accept, in `continue_from` and in load_state_dict.
        check_ranks: True, or a torch.distributed group of all ranks that read this run: before they begin to read,
            they compare their order, outputs and sizes. Where these differ, ConfigError is raised.

    Attributes:
        run: The account of the run: its position, weights, state and log.
        losses: Of the step, for `observe_step`.

    Raises:
        ConfigError: An option or argument breaks a rule.
        FormatError: A file is corrupt or not as its manifest says.
        ReadError: A file cannot be read.
        ResumeError: `continue_from` names no state from which this configuration can resume.
    """

    def _grouped(self) -> int | None:
        return grouped()

    def _place(self, device: torch.device | str | None, check_ranks: Any) -> None:
        self.check_ranks, self.device = check_ranks, as_device(device)
        self.losses = DatasetLosses(self.blend.config.names)
        self.losses.samples = [] if self.blend.config.writes_losses else None
        pins = self.blend.config.loader.pin_memory
        if self.device.type == "cuda" or (pins and torch.cuda.is_available()):
            self._allocate = pinned_block
        elif pins and not self.dp_rank:
            logger.warning("loader.pin_memory: has no effect, no CUDA device is there")
        if self.device.type == "cuda":  # a copy of one micro batch is under way behind the one that is yielded
            self.run.on_the_way = self.run.partition.group

    def __getstate__(self) -> dict[str, Any]:
        """A copy is at the same position, without the running loop and without check_ranks."""
        return {**super().__getstate__(), "check_ranks": False}

    def _converted(self, batch: Batch) -> TensorBatch:
        return to_tensors(batch)

    def _delivered(self, ahead: Iterable[tuple[Any, TensorBatch]]) -> Iterable[tuple[Any, TensorBatch]]:
        return on_device(ahead, self.device, self._transform is None) if self.device.type == "cuda" else ahead

    def _compare_ranks(self) -> None:
        """Raise ConfigError if other ranks are about to read another run, or none of them a part of it."""
        if self.check_ranks is False:
            return
        run, share = self.run, self.run.partition
        if share.dp_size > 1 and grouped() is None:
            raise ConfigError(
                "check_ranks",
                f"no process group with dp_size {share.dp_size}",
                "an initialized process group",
                "call torch.distributed.init_process_group before the first batch, or omit check_ranks",
            )
        facts = run.facts(consumed_samples=self.begins_at, partition=asdict(share))
        group = None if self.check_ranks is True else self.check_ranks
        require_same("training data", facts, group, of=(self.dp_rank, share.dp_size))

    def observe_step(self, device: torch.device | str = "cpu", *, group: Any = None) -> None:
        """A step has ended, of whose micro batches all losses were added to `losses`: see `observe`.

        To be called by every data-parallel rank, before the state is saved; without `mixing` and
        `metrics: {losses: true}` nothing happens.

        Args:
            device: See DatasetLosses.finish.
            group: As for set_weights.
        """
        if self.run.observes:
            self.losses.end_step(self.run, self._ranks(group), device)

    def _ranks(self, group: Any) -> Ranks:
        return GroupRanks(group, self.run.partition.dp_size)


make_dataloader = Loader
"""Another name of Loader: the loader of one data-parallel rank."""
