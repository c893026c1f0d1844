"""The dataset that Megatron's loader asks for samples: a MegatronDataset without an index."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from megatron.core.datasets.megatron_dataset import MegatronDataset

from conceptloader.batch.layout import Batch
from conceptloader.errors import ConfigError

from .samples import Ints, Sample, SampleRules, make_sample
from .wire import Field


class Reader(Protocol):
    """Reads batches: conceptloader.batch's readers, and takeover.StockReader."""

    def read(self, samples: npt.NDArray[np.uint64]) -> Batch: ...


class ConceptDataset(MegatronDataset):  # type: ignore[misc]
    """`num_samples` samples of an order, from sample `first` of it on. Building one reads no data.

    Args:
        reader: reads the order's samples with document borders (BatchLayout outputs cu_seqlens) and, if
            --eod-mask-loss asks for it, with no loss across them.
        num_samples: its length.
        split: Megatron's Split, which decides how its loader treats it.
        config: GPTDatasetConfig.
        fields: what a sample has beside GPTDataset's keys; none on a stage that gets no concepts.
        tokens: whether a sample has GPTDataset's keys at all. A middle stage with concepts does without.
        first: first sample of this data stage (--phase-transition-iterations).
        seed: for the cyclic sampler.
    """

    def __init__(
        self,
        reader: Reader,
        num_samples: int,
        split: Any,
        config: Any,
        *,
        fields: Sequence[Field] = (),
        tokens: bool = True,
        first: int = 0,
        seed: int = 0,
        name: str = "conceptloader",
    ) -> None:
        super().__init__(reader, name, None, num_samples, split, config)
        self.rules = SampleRules.of(config, self._pad_token_id)
        self.fields, self.tokens, self.first, self.seed = tuple(fields), tokens, first, seed

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Upstream's hook for splitting by document; our splits are token ranges."""
        raise ConfigError("ConceptDataset is not built by BlendedMegatronDatasetBuilder's own loop")

    build_low_level_dataset = numel_low_level_dataset

    def __len__(self) -> int:
        return int(self.num_samples)

    def __getitem__(self, index: int | None) -> Sample:
        """Sample `index`, counted from `first`. None gives sample 0 without loss, for the padding of a batch."""
        if index is None:
            sample = self.__getitems__([0])[0]
            return {**sample, "loss_mask": torch.zeros_like(sample["loss_mask"])} if self.tokens else sample
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """The samples of a micro batch, read together."""
        for index in indices:
            if not 0 <= index < len(self):
                raise IndexError(f"sample {index}: expected 0 <= index < {len(self)}")
        batch = self.dataset.read(np.array(indices, np.uint64) + np.uint64(self.first))
        return [self._sample(batch, row) for row in range(len(indices))]

    def _sample(self, batch: Batch, row: int) -> Sample:
        sample: Sample = {}
        if self.tokens:
            starts = inner_borders(batch.get("cu_seqlens"), row, self.rules.seq_length)
            pieces = inner_borders(batch["pieces"], row, self.rules.seq_length) if "pieces" in batch else starts
            tokens, labels, loss_mask = (batch[name][row] for name in ("input_ids", "labels", "loss_mask"))
            sample = make_sample(tokens, labels, loss_mask, starts, pieces, self.rules)
        for field in self.fields:
            value = torch.as_tensor(batch[field.name][row])
            sample[field.name] = value.to(field.dtype)
        if "dataset_id" in batch:
            sample["dataset_id"] = torch.tensor(int(batch["dataset_id"][row]), dtype=torch.int16)
        return sample


def inner_borders(cu_seqlens: npt.NDArray[np.int32] | None, row: int, length: int) -> Ints:
    """Positions in (0, length) at which a sequence of sample `row` starts, from the borders in the flat batch."""
    if cu_seqlens is None:
        return np.empty(0, np.int64)
    borders = cu_seqlens.astype(np.int64) - row * length
    return borders[(borders > 0) & (borders < length)]
