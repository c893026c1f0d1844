"""Data loaders over a dataset of ours, where Megatron's own build_pretraining_data_loader is not used."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from .samplers import Contiguous


def data_loader(
    dataset: Any, *, consumed: int, micro_batch_size: int, dp_rank: int, dp_size: int, num_workers: int = 0
) -> DataLoader[Any]:
    """A torch DataLoader over the samples of one data-parallel rank from `consumed` on, as --dataloader-type single."""
    sampler = Contiguous(
        total=len(dataset), consumed=consumed, micro_batch_size=micro_batch_size, dp_rank=dp_rank, dp_size=dp_size
    )
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=num_workers > 0,
    )


class ExternalLoader:
    """What --dataloader-type external passes through: an iterator over micro batches that can save its state.

    The state is the number of samples that the trainer has consumed, asked for at the time of saving: what the loader
    has read ahead, or what another pipeline stage has read, does not enter.
    """

    def __init__(self, loader: DataLoader[Any], consumed_samples: Any) -> None:
        self._batches = iter(loader)
        self._consumed_samples = consumed_samples

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def save_state(self) -> dict[str, int]:
        """For Megatron's maybe_save_dataloader_state. Resuming needs nothing but Megatron's own consumed samples."""
        return {"version": 1, "consumed_samples": int(self._consumed_samples())}
