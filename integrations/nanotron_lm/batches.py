"""The DataLoader of a data stage: micro batches of nanotron, for every position in the pipeline.

The rule of nanotron's PipelineBlock: of each key exactly one pipeline rank holds the tensor, all others hold a
TensorPointer to it, and every rank has the same keys. The owner is the stage that uses the key, so nothing is sent.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from conceptloader.base.strict import unknown
from conceptloader.batch.open import batch_layout, open_reader
from conceptloader.errors import ConfigError
from conceptloader.order.partition import Partition
from conceptloader.torch.samplers import MicroBatches

from . import losses
from .data import StageDataset

logger = logging.getLogger(__name__)

Keys = Mapping[str, tuple[str, int]]
"""Key of nanotron's micro batch -> (key of our batch that it comes from, the pipeline rank that holds it)."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The position of this process, and which pipeline ranks hold the embedding and the loss."""

    pp_rank: int
    pp_size: int
    input_pp_rank: int
    output_pp_rank: int
    cp_rank: int = 0
    cp_size: int = 1

    @classmethod
    def of(cls, parallel_context: Any, input_pp_rank: int, output_pp_rank: int) -> "Place":
        """From nanotron's ParallelContext, which has no context parallelism in older versions."""
        pp, cp = parallel_context.pp_pg, getattr(parallel_context, "cp_pg", None)
        place = cls(pp_rank=pp.rank(), pp_size=pp.size(), input_pp_rank=input_pp_rank, output_pp_rank=output_pp_rank)
        return place if cp is None else replace(place, cp_rank=cp.rank(), cp_size=cp.size())

    def stage(self, stage: str) -> int:
        """Pipeline rank of "first", "last" or a number."""
        named = {"first": self.input_pp_rank, "last": self.output_pp_rank}
        rank = named[stage] if stage in named else int(stage)
        if rank >= self.pp_size:
            raise ConfigError("nanotron.consume", f"found pipeline rank {rank}, this run has 0 to {self.pp_size - 1}")
        return rank


def micro_batch_keys(place: Place, position_ids: bool, consume: Mapping[str, str]) -> Keys:
    """Keys of a micro batch: Qwen2's with `position_ids`, else those of Llama and Starcoder2; and `consume`."""
    first, last = place.input_pp_rank, place.output_pp_rank
    own = {
        "input_ids": ("input_ids", first),
        **({"position_ids": ("position_ids", first)} if position_ids else {"input_mask": ("input_ids", first)}),
        "label_ids": ("labels", last),
        "label_mask": ("loss_mask", last),
    }
    return own | {name: (name, place.stage(stage)) for name, stage in consume.items() if name not in own}


@dataclass(frozen=True, kw_only=True)
class Collator:
    """For a DataLoader: a batch of conceptloader (None on ranks that own nothing) to nanotron's micro batch.

    cut: names in the batch of what runs along the inputs, of which context parallel ranks take their part.
    """

    keys: Keys
    place: Place
    cut: frozenset[str]

    @property
    def owns_nothing(self) -> bool:
        """True on a rank that needs no data at all."""
        return all(owner != self.place.pp_rank for _, owner in self.keys.values())

    def __call__(self, batch: Any) -> dict[str, Any]:
        from nanotron.parallel.pipeline_parallel.tensor_pointer import TensorPointer

        return {
            name: self._tensor(name, source, batch) if owner == self.place.pp_rank else TensorPointer(group_rank=owner)
            for name, (source, owner) in self.keys.items()
        }

    def _tensor(self, name: str, source: str, batch: Mapping[str, Any]) -> torch.Tensor:
        if source not in batch:
            offered = [key for key, value in batch.items() if isinstance(value, np.ndarray)]
            raise unknown(f"nanotron.consume.{name}", name, offered, "key of a batch")
        value = batch[source]
        if not isinstance(value, np.ndarray):
            raise ConfigError(
                f"nanotron.consume.{name}",
                f"holds a {type(value).__name__}, nanotron moves only tensors",
                fix="remove it",
            )
        if name == "input_mask":
            value = np.ones(value.shape, np.bool_)
        elif name == "label_mask":
            value = value != 0
        if self.place.cp_size > 1 and source in self.cut:
            part = value.shape[1] // self.place.cp_size
            value = value[:, self.place.cp_rank * part : (self.place.cp_rank + 1) * part]
        return torch.from_numpy(np.ascontiguousarray(value))


class _Timed(DataLoader[Any]):
    """Tells the dataset how long each micro batch was waited for."""

    def __iter__(self) -> Any:
        start = time.monotonic()
        for batch in super().__iter__():
            self.dataset.waited_s += time.monotonic() - start  # type: ignore[attr-defined]
            yield batch
            start = time.monotonic()


def make_dataloader(
    dataset: StageDataset,
    *,
    micro_batch_size: int,
    parallel_context: Any,
    input_pp_rank: int,
    output_pp_rank: int,
    num_workers: int,
    use_position_ids: bool = False,
    dataloader_pin_memory: bool = True,
    **unused: Any,
) -> DataLoader[Any]:
    """An endless DataLoader of this rank's micro batches, from the dataset's position on. Takes what nanotron gives."""
    config = dataset.blend.config
    place = Place.of(parallel_context, input_pp_rank, output_pp_rank)
    layout = batch_layout(dataset.blend)
    # position_ids stay whole: nanotron's ring attention derives the sequence lengths from them.
    along = {name for name, spec in layout.arrays(1).items() if spec.along}
    cut = frozenset({"input_ids", "labels", *along} - {"position_ids"})  # also those that are views of `tokens`
    keys = micro_batch_keys(place, use_position_ids, dataset.options.consume)
    collator = Collator(keys=keys, place=place, cut=cut)
    dataset.partition = Partition(micro_batch_size=micro_batch_size, dp_size=parallel_context.dp_pg.size())
    dataset.dp_rank = parallel_context.dp_pg.rank()
    dataset.reader = None if collator.owns_nothing else open_reader(dataset.blend, dataset.dp_rank, layout)
    if use_position_ids and config.outputs.position_ids == "off":
        raise ConfigError(
            "outputs.position_ids", "off, but this model takes position ids", fix="choose window or document"
        )
    if config.packing is not None and not use_position_ids and parallel_context.world_pg.rank() == 0:
        logger.warning(
            "packing: this model takes no position ids, so that its attention crosses the documents of a pack; of "
            "nanotron's own models Qwen2 keeps them apart"
        )
    assert config.seq_len is not None
    if place.cp_size > 1 and config.seq_len % (2 * place.cp_size):
        raise ConfigError(
            "seq_len", f"{config.seq_len} is not divisible by 2 * context_parallel_size = {2 * place.cp_size}"
        )
    if dataset.options.loss_per_dataset and place.pp_rank == output_pp_rank:
        group = getattr(parallel_context, "dp_cp_pg", parallel_context.dp_pg)
        logs = group.rank() == 0 and parallel_context.tp_pg.rank() == 0
        dataset.loss_per_dataset = losses.LossPerDataset(config.names, group, logs)
    losses.activate(dataset.loss_per_dataset)
    dataset.num_workers = num_workers if dataset.reader is not None else 0
    return _Timed(
        dataset,
        batch_sampler=MicroBatches(dataset.partition, dataset.dp_rank, dataset.consumed),
        num_workers=dataset.num_workers,
        collate_fn=collator,
        pin_memory=dataloader_pin_memory and dataset.reader is not None,
    )
