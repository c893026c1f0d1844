"""The DataLoader of a data stage: micro batches of nanotron, for every position in the pipeline.

The rule of nanotron's PipelineBlock: of each key exactly one pipeline rank holds the tensor, all others hold a
TensorPointer to it, and every rank has the same keys. The owner is the stage that uses the key, so nothing is sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from conceptloader.batch.open import open_reader
from conceptloader.blend.strict import nearest
from conceptloader.errors import ConfigError
from conceptloader.order.partition import Partition
from conceptloader.torch.samplers import MicroBatches

from . import losses
from .data import StageDataset

Batch = Mapping[str, Any]

# Held per token of the input window, so that context parallel ranks take their part of dimension 1.
# position_ids stay global there: nanotron's ring attention derives the sequence lengths from them.
PER_TOKEN = frozenset({"input_ids", "labels", "loss_mask", "document_ids"})


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of the micro batch: where it comes from, and the pipeline rank that holds it."""

    name: str
    source: str
    owner: int
    per_token: bool


@dataclass(frozen=True, kw_only=True)
class Place:
    """The position of this process, and which pipeline ranks hold the embedding and the loss."""

    pp_rank: int
    pp_size: int
    input_pp_rank: int
    output_pp_rank: int
    cp_rank: int = 0
    cp_size: int = 1

    def stage(self, stage: str) -> int:
        """Pipeline rank of "first", "last" or a number."""
        named = {"first": self.input_pp_rank, "last": self.output_pp_rank}
        rank = named[stage] if stage in named else int(stage)
        if rank >= self.pp_size:
            raise ConfigError(f"nanotron.consume: found pipeline rank {rank}, this run has 0 to {self.pp_size - 1}")
        return rank


def micro_batch_keys(place: Place, position_ids: bool, consume: Mapping[str, str]) -> tuple[Key, ...]:
    """Keys of a micro batch: Qwen2's with `position_ids`, else those of Llama and Starcoder2; and `consume`."""
    first, last = place.input_pp_rank, place.output_pp_rank
    keys = [Key(name="input_ids", source="input_ids", owner=first, per_token=True)]
    if position_ids:
        keys.append(Key(name="position_ids", source="position_ids", owner=first, per_token=False))
    else:
        keys.append(Key(name="input_mask", source="input_ids", owner=first, per_token=True))
    keys.append(Key(name="label_ids", source="labels", owner=last, per_token=True))
    keys.append(Key(name="label_mask", source="loss_mask", owner=last, per_token=True))
    for name, stage in consume.items():
        per_token = name in PER_TOKEN or name.endswith("_span_index")
        if name not in (key.name for key in keys):
            keys.append(Key(name=name, source=name, owner=place.stage(stage), per_token=per_token))
    return tuple(keys)


@dataclass(frozen=True, kw_only=True)
class Collator:
    """For a DataLoader: a batch of conceptloader (None on ranks that own nothing) to nanotron's micro batch."""

    keys: Sequence[Key]
    place: Place

    @property
    def owns_nothing(self) -> bool:
        """True on a rank that needs no data at all."""
        return all(key.owner != self.place.pp_rank for key in self.keys)

    def __call__(self, batch: Any) -> dict[str, Any]:
        from nanotron.parallel.pipeline_parallel.tensor_pointer import TensorPointer

        result: dict[str, Any] = {}
        for key in self.keys:
            if key.owner != self.place.pp_rank:
                result[key.name] = TensorPointer(group_rank=key.owner)
                continue
            assert batch is not None
            result[key.name] = self._tensor(key, batch)
        return result

    def _tensor(self, key: Key, batch: Batch) -> torch.Tensor:
        if key.source not in batch:
            offered = [name for name, value in batch.items() if isinstance(value, np.ndarray)]
            raise ConfigError(f"nanotron.consume.{key.name}: no such key in the batch{nearest(key.name, offered)}")
        value = batch[key.source]
        if not isinstance(value, np.ndarray):
            raise ConfigError(
                f"nanotron.consume.{key.name}: holds a {type(value).__name__}, nanotron moves only tensors; remove it"
            )
        if key.name == "input_mask":
            value = np.ones(value.shape, np.bool_)
        elif key.name == "label_mask":
            value = value != 0
        if key.per_token and self.place.cp_size > 1:
            part = value.shape[1] // self.place.cp_size
            value = value[:, self.place.cp_rank * part : (self.place.cp_rank + 1) * part]
        return torch.from_numpy(np.ascontiguousarray(value))


def make_dataloader(
    dataset: StageDataset,
    *,
    micro_batch_size: int,
    parallel_context: Any,
    input_pp_rank: int,
    output_pp_rank: int,
    position_ids: bool,
    num_workers: int,
    pin_memory: bool,
) -> DataLoader[Any]:
    """An endless DataLoader of this rank's micro batches, from the dataset's position on."""
    config = dataset.blend.config
    place = _place(parallel_context, input_pp_rank, output_pp_rank)
    collator = Collator(keys=micro_batch_keys(place, position_ids, dataset.options.consume), place=place)
    dataset.partition = Partition(micro_batch_size=micro_batch_size, dp_size=parallel_context.dp_pg.size())
    dataset.dp_rank = parallel_context.dp_pg.rank()
    dataset.reader = None if collator.owns_nothing else open_reader(dataset.blend, dataset.dp_rank)
    if position_ids and config.outputs.position_ids == "off":
        raise ConfigError("outputs.position_ids: off, but this model takes position ids; choose window or document")
    assert config.seq_len is not None
    if place.cp_size > 1 and config.seq_len % (2 * place.cp_size):
        raise ConfigError(
            f"seq_len: {config.seq_len} is not divisible by 2 * context_parallel_size = {2 * place.cp_size}"
        )
    if dataset.options.loss_per_dataset and place.pp_rank == output_pp_rank:
        group = getattr(parallel_context, "dp_cp_pg", parallel_context.dp_pg)
        logs = group.rank() == 0 and parallel_context.tp_pg.rank() == 0
        dataset.loss_per_dataset = losses.LossPerDataset(config.names, group, logs)
    losses.activate(dataset.loss_per_dataset)
    return DataLoader(
        dataset,
        batch_sampler=MicroBatches(dataset.partition, dataset.dp_rank, dataset.consumed),
        num_workers=num_workers if dataset.reader is not None else 0,
        collate_fn=collator,
        pin_memory=pin_memory and dataset.reader is not None,
    )


def _place(parallel_context: Any, input_pp_rank: int, output_pp_rank: int) -> Place:
    cp = getattr(parallel_context, "cp_pg", None)
    return Place(
        pp_rank=parallel_context.pp_pg.rank(),
        pp_size=parallel_context.pp_pg.size(),
        input_pp_rank=input_pp_rank,
        output_pp_rank=output_pp_rank,
        cp_rank=cp.rank() if cp is not None else 0,
        cp_size=cp.size() if cp is not None else 1,
    )
