"""Batches for plain PyTorch: a loader that prefetches."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from conceptloader.batch.layout import Batch
from conceptloader.batch.loader import BaseLoader
from conceptloader.errors import ConfigError
from conceptloader.run.ranks import Alone, Ranks
from conceptloader.torch.agreement import GroupRanks, require_same
from conceptloader.torch.collate import TensorBatch, as_device, on_device, pinned_block, to_tensors

logger = logging.getLogger(__name__)


class Loader(BaseLoader[TensorBatch]):
    """Iterates over the micro batches of one data-parallel rank: dicts of tensors, see docs/batch-keys.md.

    `for batch in loader` resumes where the last loop stopped, until the run ends. With order sequential each loop
    starts at the beginning, except for the first one after load_state_dict, which resumes there. Every micro batch that
    was yielded counts as consumed, on all ranks; prefetched ones do not.

    BaseLoader has the arguments. For a CUDA `device` the next batch is copied, from pinned memory, while the device
    works on the current one; a `batch_transform` then returns a dict, whose tensors are copied. `check_ranks`: True, or
    a torch.distributed group of all ranks that read this run. When they begin to read, the ranks compare their order,
    outputs and sizes, and raise ConfigError where these differ; see torch/agreement.py.
    """

    def _place(self, device: torch.device | str | None, check_ranks: Any) -> None:
        self.check_ranks, self.device = check_ranks, as_device(device)
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
        """Raise ConfigError if other ranks are about to read another run, or another part of it."""
        if self.check_ranks is False:
            return
        run, share = self.run, self.run.partition
        if share.dp_size > 1 and not (dist.is_available() and dist.is_initialized()):
            raise ConfigError(
                "check_ranks",
                f"found no process group with dp_size {share.dp_size}",
                fix="call torch.distributed.init_process_group before the first batch, or omit check_ranks",
            )
        facts = run.facts(consumed_samples=self.begins_at, partition=asdict(share))
        require_same("training data", facts, None if self.check_ranks is True else self.check_ranks)

    def set_weights(
        self,
        weights: Mapping[str, float],
        at: int | None = None,
        *,
        why: str = "",
        group: Any = None,
        agree: bool = True,
    ) -> int:
        """Draw datasets in other proportions from the sample `at` on: a phase that is set mid-run.

        To be called by every data-parallel rank between the same two micro batches, with the same arguments. The phase
        is in the state from now on, and in the run log once log_start has been called: a resumed run keeps it. It lasts
        until weights are set again, or the next phase of the configuration.

        Args:
            weights: Dataset -> number above 0; datasets that are omitted are not drawn.
            at: Sample over all ranks; by default the first step of which nothing was yielded. What was prefetched of it
                is read again; on a CUDA device one micro batch more is on its way there.
            why: They are set, for the run log.
            group: The torch.distributed group of the data-parallel ranks, by default all processes; where it is
                initialized, ranks compare what they are about to do, and agree=False skips that.
            agree: False skips the comparison of ranks.

        Returns:
            The sample from which on it holds.

        Raises:
            ConfigError: For unknown or absent datasets, invalid weights, an `at` of what was yielded
                already or that is not after weights set earlier, ranks that differ.
            ReadError: For the run log.
        """
        return self.run.set_weights(weights, at, why=why, ranks=self._ranks(group, agree))

    def observe(self, losses: Mapping[str, float] | None = None, *, group: Any = None, agree: bool = True) -> None:
        """Give the section `mixing` of the configuration the losses of a step; it may set weights, see set_weights.

        To be called by every data-parallel rank once a step: after its last micro batch has been yielded, and before
        the state is saved.

        Args:
            losses: Mean loss of each dataset that the step held, equal on all ranks, as DatasetLosses.finish gives it;
                kinds that do not learn from losses need none.
            group: The torch.distributed group of the data-parallel ranks, by default all processes; where it is
                initialized, ranks compare what they are about to do.
            agree: False skips the comparison of ranks.

        Raises:
            ConfigError: Without that section, for a second call in a step, losses that are wrong, weights that
                set_weights refuses, ranks that differ.
        """
        self.run.observe(losses, self._ranks(group, agree))

    def _ranks(self, group: Any, agree: bool) -> Ranks:
        return GroupRanks(group, self.run.partition.dp_size) if agree else Alone()


make_dataloader = Loader
"""The loader of one data-parallel rank."""
