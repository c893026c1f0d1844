"""Concept tensors from Megatron's data iterator to a model that asks for them.

Megatron's get_batch knows a fixed set of keys, and drops or even slices the others. So the iterator that it reads keeps
ours aside, and `concepts(data_iterator)`, called once in each forward_step, hands them out: on every tensor-parallel
rank of the configured pipeline stages, in step with the micro batch, whatever the schedule has in flight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.rerun_state_machine import RerunDataIterator

from conceptloader.errors import ConfigError

from .samples import STOCK_KEYS
from .wire import Field, Tensors, buffer_bytes, checked, context_slice, merge_samples, pack, unpack


class SplitIterator(RerunDataIterator):  # type: ignore[misc]
    """A RerunDataIterator that gives Megatron its own keys only and keeps the rest of the micro batch for `concepts`.

    A replay of the rerun state machine passes through here as well, so that it meets the same concept tensors again.
    """

    def __init__(self, iterable: Any) -> None:
        super().__init__(iterable)
        self._kept: Tensors | None = None  # of the micro batch that Megatron took last

    def __next__(self) -> Tensors:
        stock, kept = self._pull()
        self._kept = kept if stock else None
        return stock

    def take_concepts(self) -> Tensors:
        """Concept tensors of the micro batch that Megatron took last; on a stage where it takes none, of the next one.

        Raises ConfigError if Megatron has not taken its part of this micro batch yet.
        """
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
        stock, kept = self._pull()
        if stock:
            raise ConfigError("concepts: call it once in each forward step, after get_batch")
        return kept

    def rewind(self) -> None:
        self._kept = None
        super().rewind()

    def advance(self) -> None:
        self._kept = None
        super().advance()

    def _pull(self) -> tuple[Tensors, Tensors]:
        batch = super().__next__()
        stock = {key: batch[key] for key in STOCK_KEYS if key in batch}
        kept = {key: value for key, value in batch.items() if key not in stock}
        if stock and "dataset_id" in kept and parallel_state.get_context_parallel_world_size() == 1:
            # As BlendedDataset does. Not so with context parallelism: Megatron would slice it along a second dimension.
            stock["dataset_id"] = kept["dataset_id"]
        return stock, kept


@dataclass(frozen=True)
class Stage:
    """Which pipeline stages get concept tensors: "first", "last", "all", "none" or a number.

    Stages are numbered through the model: virtual stage v of pipeline rank p is v * pipeline_size + p.
    """

    name: str = "last"

    def __post_init__(self) -> None:
        if self.name not in ("first", "last", "all", "none") and not self.name.isdecimal():
            raise ConfigError(f"concept stage: found {self.name!r}, expected first, last, all, none or a stage number")

    def here(self, vp_stage: int | None = None) -> bool:
        """Whether the (virtual) stage of this process is meant."""
        if self.name in ("all", "none"):
            return self.name == "all"
        ranks = parallel_state.get_pipeline_model_parallel_world_size()
        chunks = parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1
        wanted = {"first": 0, "last": ranks * chunks - 1}.get(self.name)
        wanted = int(self.name) if wanted is None else wanted
        if wanted >= ranks * chunks:
            raise ConfigError(f"concept stage: found {wanted}, but the pipeline has {ranks * chunks} stages (from 0)")
        if chunks > 1 and vp_stage is None:
            raise ConfigError("concepts: with virtual pipeline stages pass vp_stage, as to Megatron's own get_batch")
        return bool(wanted == (vp_stage or 0) * ranks + parallel_state.get_pipeline_model_parallel_rank())


@dataclass(frozen=True, kw_only=True)
class ConceptReader:
    """Gives the concept tensors of each micro batch to the ranks of the configured stages.

    fields: what a sample has beside Megatron's keys (wire.fields_of), the same on all ranks.
    packed: whether micro batches are merged to one sequence (--dataloader-inter-document-masking).
    """

    fields: Sequence[Field]
    stage: Stage
    seq_length: int
    micro_batch_size: int
    packed: bool = False

    def __call__(
        self, data_iterator: Any, vp_stage: int | None = None, micro_batch_size: int | None = None
    ) -> Tensors | None:
        """Call once in each forward step, on all tensor-parallel ranks. None on other stages than the configured ones.

        Returns: the fields as tensors [B, ...] on the compute device. With context parallelism those along the sequence
        are cut as the tokens are; spans keep their positions in the whole sample.
        """
        if not self.stage.here(vp_stage):
            return None
        kept = None
        if parallel_state.get_tensor_model_parallel_rank() == 0:
            if not isinstance(data_iterator, SplitIterator):
                raise ConfigError(
                    f"concepts: found data iterator {type(data_iterator).__name__}, expected conceptloader's; "
                    "start the script with conceptloader.launch, or take the tensors from conceptloader's get_batch"
                )
            kept = data_iterator.take_concepts()
        return self.cut(share(kept, self.fields, micro_batch_size or self.micro_batch_size))

    def cut(self, tensors: Tensors) -> Tensors:
        """The part of this context-parallel rank."""
        if self.packed:
            tensors = merge_samples(tensors, self.fields, self.seq_length)
        cp_size = parallel_state.get_context_parallel_world_size()
        cp_rank = parallel_state.get_context_parallel_rank()
        for f in self.fields:
            if f.sequence:
                tensors[f.name] = context_slice(tensors[f.name], 1, cp_rank, cp_size)
        return tensors


def device() -> torch.device:
    """Where the model computes."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def share(tensors: Tensors | None, fields: Sequence[Field], batch: int) -> Tensors:
    """Broadcast `fields` from tensor-parallel rank 0, which alone has `tensors`, to its group."""
    found = None if tensors is None else checked(tensors, fields, batch)
    if parallel_state.get_tensor_model_parallel_world_size() == 1 and found is not None:
        return {name: tensor.to(device(), non_blocking=True) for name, tensor in found.items()}
    if found is not None:
        buffer = pack(found, fields).to(device(), non_blocking=True)
    else:
        buffer = torch.empty(buffer_bytes(fields, batch), dtype=torch.uint8, device=device())
    torch.distributed.broadcast(
        buffer,
        parallel_state.get_tensor_model_parallel_src_rank(),
        group=parallel_state.get_tensor_model_parallel_group(),
    )
    return unpack(buffer, fields, batch)
