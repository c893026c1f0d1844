"""Tensors that Megatron does not know, from its data iterator to a model that asks for them.

Megatron's get_batch knows a fixed set of keys, and drops or even slices the others. So the iterator that it reads keeps
ours aside, and `concepts(data_iterator)`, called once in each forward_step, hands them out: on every tensor-parallel
rank of the configured pipeline stages, in step with the micro batch, whatever the schedule has in flight. All shapes
follow from the config, so that nobody has to announce them: one broadcast of one buffer per micro batch.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.rerun_state_machine import RerunDataIterator
from megatron.core.transformer.enums import LayerType

from conceptloader.errors import ConfigError
from conceptloader.torch.agreement import require_same, start_facts

from .dataset import STOCK_KEYS, Field, SampleRules, stock_fields
from .options import Stage

logger = logging.getLogger(__name__)

Tensors = dict[str, torch.Tensor]


def aligned(fields: Sequence[Field]) -> list[Field]:
    """Wide types first, so that each field of a packed buffer begins at a multiple of its item size."""
    return sorted(fields, key=lambda f: -f.dtype.itemsize)


def num_bytes(field: Field, batch: int) -> int:
    """Of `batch` samples in a packed buffer."""
    return batch * prod(field.shape) * field.dtype.itemsize


def checked(tensors: Mapping[str, torch.Tensor], fields: Sequence[Field], batch: int) -> Tensors:
    """The tensors of `fields`. ConfigError if one is missing, or of another shape or dtype."""
    for f in fields:
        tensor, expected = tensors.get(f.name), (batch, *f.shape)
        found = None if tensor is None else (tuple(tensor.shape), tensor.dtype)
        if found != (expected, f.dtype):
            raise ConfigError(
                f"batch[{f.name!r}]",
                str(found or "nothing"),
                f"shape {expected} of {f.dtype}",
                "the same config and micro batch size must be set on every rank",
            )
    return {f.name: tensors[f.name] for f in fields}


def pack(tensors: Mapping[str, torch.Tensor], fields: Sequence[Field]) -> torch.Tensor:
    """One uint8 buffer of all `fields`."""
    return torch.cat([tensors[f.name].contiguous().view(-1).view(torch.uint8) for f in aligned(fields)])


def unpack(buffer: torch.Tensor, fields: Sequence[Field], batch: int) -> Tensors:
    """The tensors of a packed buffer, as views of it."""
    ordered = aligned(fields)
    parts = buffer.split_with_sizes([num_bytes(f, batch) for f in ordered])
    return {f.name: part.view(f.dtype).view(batch, *f.shape) for f, part in zip(ordered, parts, strict=True)}


def context_slice(tensor: torch.Tensor, dim: int, cp_rank: int, cp_size: int) -> torch.Tensor:
    """The part of a context-parallel rank: chunks cp_rank and 2 * cp_size - 1 - cp_rank of 2 * cp_size along `dim`.

    As megatron/core/utils.py get_batch_on_this_cp_rank deals out the tokens: every rank has equal work.
    """
    if cp_size == 1:
        return tensor
    if tensor.shape[dim] % (2 * cp_size):
        raise ConfigError(
            f"sequence of {tensor.shape[dim]} tokens",
            f"expected a multiple of 2 * context_parallel_size = {2 * cp_size}",
        )
    chunks = tensor.chunk(2 * cp_size, dim)
    return torch.cat((chunks[cp_rank], chunks[2 * cp_size - 1 - cp_rank]), dim)


def merge_samples(tensors: Tensors, fields: Sequence[Field], seq_length: int) -> Tensors:
    """A micro batch as the one long sequence that --dataloader-inter-document-masking trains on.

    Fields along the sequence become [1, B * S] and point into span slots of all samples: a `_span_index` k of sample b
    into slot b * max_spans + k, and `_spans` of sample b begin at b * S. Padded cu_seqlens [B, S + 1] become int32
    [n + 1], max_seqlen the largest one. The other fields become [1, B * ..., ...].
    """
    merged = {}
    for f in fields:
        tensor = tensors[f.name]
        batch = tensor.shape[0]
        sample = torch.arange(batch, dtype=tensor.dtype, device=tensor.device)
        if f.name == "max_seqlen":
            merged[f.name] = tensor.max()
            continue
        if f.name == "cu_seqlens":
            starts = (tensor + (sample * seq_length)[:, None])[tensor < seq_length]
            merged[f.name] = torch.cat((starts, starts.new_tensor([batch * seq_length])))
            continue
        if f.name.endswith("_span_index"):
            spans = next(g.shape[0] for g in fields if g.name == f.name.removesuffix("_index") + "s")
            tensor = torch.where(tensor < 0, tensor, tensor + (sample * spans)[:, None])
        elif f.name.endswith("_spans") and len(f.shape) == 2:
            tensor = tensor + (sample * seq_length)[:, None, None]
        merged[f.name] = tensor.reshape(1, -1, *f.shape[1:]) if f.shape else tensor
    return merged


class SplitIterator(RerunDataIterator):  # type: ignore[misc]
    """A RerunDataIterator that gives Megatron its own keys only and keeps the rest of the micro batch for `concepts`.

    A replay of the rerun state machine passes through here as well, so that it meets the same concept tensors again.
    """

    def __init__(self, iterable: Any, took: Callable[["SplitIterator", float], None] | None = None) -> None:
        """took: told how many seconds each micro batch of training was waited for, replays left out."""
        super().__init__(iterable)
        self._took = took
        self._kept: Tensors | None = None  # of the micro batch that Megatron took last
        self._weighs = True  # unless it was said that nobody does

    def __next__(self) -> Tensors:
        if self._weighs and torch.is_grad_enabled() and "loss_weight" in (self._kept or ()):  # evaluations may leave it
            self._weighs = False
            logger.warning(  # no error: iterations that Megatron skips take none either
                "outputs.loss_weight: the last forward step did not take the weights, and Megatron's own loss trains "
                "as if all were 1: multiply the losses by concepts(data_iterator)['loss_weight'], or leave it out"
            )
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
            raise ConfigError("concepts", "call it once in each forward step, after get_batch")
        return kept

    def rewind(self) -> None:
        self._kept = None
        super().rewind()

    def advance(self) -> None:
        self._kept = None
        super().advance()

    def _pull(self) -> tuple[Tensors, Tensors]:
        start = time.monotonic()
        batch = super().__next__()
        if self._took is not None and torch.is_grad_enabled() and not self.replaying:  # Megatron evaluates without
            self._took(self, time.monotonic() - start)
        stock = {key: batch[key] for key in STOCK_KEYS if key in batch}
        kept = {key: value for key, value in batch.items() if key not in stock}
        if stock and "dataset_id" in kept and parallel_state.get_context_parallel_world_size() == 1:
            # As BlendedDataset does. Not so with context parallelism: Megatron would slice it along a second dimension.
            stock["dataset_id"] = kept["dataset_id"]
        return stock, kept


def device() -> torch.device:
    """Where the model computes."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def share(tensors: Tensors | None, fields: Sequence[Field], batch: int | None) -> Tensors:
    """Broadcast `fields` from tensor-parallel rank 0, which alone has `tensors`, to its group.

    batch: samples; None in evaluation, where Megatron takes micro batches of other sizes, and rank 0 tells.
    """
    alone = parallel_state.get_tensor_model_parallel_world_size() == 1
    if batch is None:
        size = torch.tensor([len(next(iter(tensors.values()))) if tensors else 0], device=device())
        if not alone:
            _broadcast(size)
        batch = int(size)
    found = None if tensors is None else checked(tensors, fields, batch)
    if alone and found is not None:
        return {name: tensor.to(device(), non_blocking=True) for name, tensor in found.items()}
    if found is not None:
        buffer = pack(found, fields).to(device(), non_blocking=True)
    else:
        buffer = torch.empty(sum(num_bytes(f, batch) for f in fields), dtype=torch.uint8, device=device())
    _broadcast(buffer)
    return unpack(buffer, fields, batch)


def _broadcast(tensor: torch.Tensor) -> None:
    group = parallel_state.get_tensor_model_parallel_group()
    torch.distributed.broadcast(tensor, parallel_state.get_tensor_model_parallel_src_rank(), group=group)


@dataclass(frozen=True, kw_only=True)
class BatchReader:
    """Gives the tensors of each micro batch to the ranks that need them.

    rules: what a sample holds of Megatron's keys. fields: what it has beside them (dataset.fields_of), the same on all
    ranks, for the stages `stage`. pipeline_layout: the model's, if it has one of its own, see `takes_tokens`.
    """

    rules: SampleRules
    fields: Sequence[Field]
    stage: Stage
    micro_batch_size: int
    pipeline_layout: Any = None

    def concepts(
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
                    "concepts",
                    f"data iterator {type(data_iterator).__name__}",
                    "conceptloader's",
                    "start the script with conceptloader.launch, or take the tensors from conceptloader's get_batch",
                )
            kept = data_iterator.take_concepts()
        return self._share(kept, self.fields, micro_batch_size)

    def get_batch(
        self, data_iterator: Any, vp_stage: int | None = None, micro_batch_size: int | None = None
    ) -> Tensors:
        """For scripts of one's own: Megatron's keys and the concept tensors in one broadcast.

        Call once in each forward step, on all ranks of the stage. A stage that needs nothing gets {}.

        Returns: on the first and last pipeline stage, and those with MTP layers, tokens, labels, position_ids
            int64 [B, S], loss_mask float32 [B, S] and, if the rules ask for it, attention_mask bool [B, 1, S, S]; on
            the concept stages those tensors too. Everything is cut for context parallelism. With inter_document_masking
            the samples of the micro batch are one sequence [1, B * S], and cu_seqlens int32 [n + 1] and max_seqlen
            int32 [] are there on every stage.
        """
        reads_tokens = self.rules.inter_document_masking or takes_tokens(self.pipeline_layout, vp_stage)
        extra = self.fields if self.stage.here(vp_stage) else ()
        fields = (*(stock_fields(self.rules) if reads_tokens else ()), *extra)
        if not fields:
            return {}
        batch = None
        if parallel_state.get_tensor_model_parallel_rank() == 0:
            if data_iterator is None:
                raise ConfigError(
                    "get_batch", "found no data iterator on a rank that reads data", fix="build it there as well"
                )
            batch = next(data_iterator)
            if isinstance(data_iterator, SplitIterator) and extra:
                batch = {**batch, **data_iterator.take_concepts()}
        return self._share(batch, fields, micro_batch_size)

    def _share(self, tensors: Tensors | None, fields: Sequence[Field], micro_batch_size: int | None) -> Tensors:
        """The part of this context-parallel rank."""
        known = self.micro_batch_size if torch.is_grad_enabled() else None  # Megatron evaluates without gradients
        found = share(tensors, fields, micro_batch_size or known)
        if self.rules.inter_document_masking:
            found = merge_samples(found, fields, self.rules.seq_length)
        cp_size = parallel_state.get_context_parallel_world_size()
        cp_rank = parallel_state.get_context_parallel_rank()
        for f in fields:
            if f.along:
                found[f.name] = context_slice(found[f.name], f.along, cp_rank, cp_size)
        return found


def require_same_data(opened: Mapping[str, Any], **more: Any) -> None:
    """Raise ConfigError unless the ranks that read in step have opened the same. opened: what has a spec and a config.

    By data-parallel groups and then by pipelines, whose ranks are of one tensor-parallel rank: these all come here,
    though Megatron may ask tensor-parallel rank 0 alone for data. Together the groups tie all of them to each other.
    """
    if not torch.distributed.is_initialized():
        return
    facts = {**{name: start_facts(one) for name, one in opened.items()}, **more}
    require_same("the training data", facts, parallel_state.get_data_parallel_group(with_context_parallel=True))
    require_same("the training data", facts, parallel_state.get_pipeline_model_parallel_group())


def takes_tokens(layout: Any, vp_stage: int | None = None) -> bool:
    """Whether the stage of this process is the model's first or last one, or has layers of multi-token prediction.

    layout: TransformerConfig's pipeline_model_parallel_layout, or None; without one these layers are on the last stage.
    """
    virtual = parallel_state.get_virtual_pipeline_model_parallel_world_size()
    options = {"ignore_virtual": virtual is None, "vp_stage": vp_stage}
    if layout is not None:
        stages = layout.layout[parallel_state.get_pipeline_model_parallel_rank()]
        if any(LayerType.mtp in stage for stage in (stages if virtual is None else [stages[vp_stage or 0]])):
            return True
    return bool(parallel_state.is_pipeline_first_stage(**options) or parallel_state.is_pipeline_last_stage(**options))
