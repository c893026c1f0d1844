"""Tensors that Megatron does not know, from its data iterator to a model that asks for them.

Megatron's get_batch knows a fixed set of keys, and drops or even slices the others. So the iterator that it reads keeps
conceptloader's aside, and `concepts(data_iterator)`, called once in each forward_step, returns them: on every
tensor-parallel rank of the configured pipeline stages, in step with the micro batch, for any number of micro batches in
flight. All shapes follow from the config, so they need no communication.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.rerun_state_machine import RerunDataIterator
from megatron.core.transformer.enums import LayerType

from conceptloader.errors import ConfigError
from conceptloader.loader.torch.agreement import require_same

from .dataset import STOCK_KEYS, Field

logger = logging.getLogger(__name__)

Tensors = dict[str, torch.Tensor]


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
                "pass the same --conceptloader-config and --micro-batch-size on every rank",
            )
    return {f.name: tensors[f.name] for f in fields}


def context_slice(tensor: torch.Tensor, dim: int, cp_rank: int, cp_size: int) -> torch.Tensor:
    """The part of a context-parallel rank: chunks cp_rank and 2 * cp_size - 1 - cp_rank of 2 * cp_size along `dim`.

    As megatron/core/utils.py get_batch_on_this_cp_rank assigns the tokens: every rank has equal work.
    """
    if cp_size == 1:
        return tensor
    if tensor.shape[dim] % (2 * cp_size):
        raise ConfigError(
            "seq_len",
            f"a sequence of {tensor.shape[dim]} tokens",
            f"a multiple of 2 * context_parallel_size = {2 * cp_size}",
            f"pass --seq-length with a multiple of {2 * cp_size}",
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
    slots = {f.name: f.shape[0] for f in fields if f.name.endswith("_spans") and len(f.shape) == 2 and not f.along}
    for f in fields:
        tensor = tensors[f.name]
        batch = tensor.shape[0]
        if f.name == "max_seqlen":
            merged[f.name] = tensor.max()
            continue
        sample = torch.arange(batch, dtype=torch.int32, device=tensor.device)
        if f.name == "cu_seqlens":
            starts = (tensor + (sample * seq_length)[:, None])[tensor < seq_length]
            merged[f.name] = torch.cat((starts, starts.new_tensor([batch * seq_length])))
            continue
        spans = slots.get(f.name.removesuffix("_index") + "s")
        if f.name.endswith("_span_index") and spans is not None:
            tensor = torch.where(tensor < 0, tensor, tensor + (sample * spans)[:, None])
        elif f.name in slots:
            tensor = tensor + (sample * seq_length)[:, None, None]
        merged[f.name] = tensor.reshape(1, -1, *f.shape[1:]) if f.shape else tensor
    return merged


class SplitIterator(RerunDataIterator):  # type: ignore[misc]
    """A RerunDataIterator that gives Megatron its own keys only and keeps the rest of the micro batch for `concepts`.

    A replay of the rerun state machine passes through here as well, so that it meets the same concept tensors again.
    """

    def __init__(
        self, iterable: Any, took: Callable[["SplitIterator", float, torch.Tensor | None], None] | None = None
    ) -> None:
        """took: told of each micro batch of training, but for replays, how long it was waited for, and its mask."""
        super().__init__(iterable)
        self._took = took
        self._kept: Tensors | None = None  # of the micro batch that Megatron took last
        self._weighs = True  # unless it was said that nobody does

    def __next__(self) -> Tensors:
        if self._weighs and torch.is_grad_enabled() and "loss_weight" in (self._kept or ()):  # evaluations may leave it
            self._weighs = False
            logger.warning(  # no error: iterations that Megatron skips take none either
                "outputs.loss_weight: the last forward step did not take the weights, and Megatron's own loss trains "
                "as if all were 1: multiply the losses by concepts(data_iterator)['loss_weight'], or remove the key"
            )
        stock, kept = self._pull()
        self._kept = kept if stock else None
        return stock

    def take_concepts(self) -> Tensors:
        """Concept tensors of the micro batch that Megatron took last; on a stage where it takes none, of the next one.

        Raises:
            ConfigError: If Megatron has not taken its part of this micro batch yet.
        """
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
        stock, kept = self._pull()
        if stock:
            raise ConfigError(
                "concepts",
                "a second call for one micro batch, or a call before get_batch",
                "one call in each forward step, after get_batch",
                "call concepts() once in a forward step, after get_batch, and keep what it returns",
            )
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
            self._took(self, time.monotonic() - start, batch.get("loss_mask"))
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

    batch: samples; None in evaluation, where Megatron takes micro batches of other sizes, and rank 0 sends its own.
    """
    if batch is None:
        size = torch.tensor([len(next(iter(tensors.values()))) if tensors else 0], device=device())
        _broadcast(size)
        batch = int(size)
    if tensors is None:
        found = {f.name: torch.empty((batch, *f.shape), dtype=f.dtype, device=device()) for f in fields}
    else:
        known = checked(tensors, fields, batch)
        found = {name: tensor.contiguous().to(device(), non_blocking=True) for name, tensor in known.items()}
    for tensor in found.values():
        _broadcast(tensor)
    return found


def _broadcast(tensor: torch.Tensor) -> None:
    if parallel_state.get_tensor_model_parallel_world_size() > 1:
        group = parallel_state.get_tensor_model_parallel_group()
        source = parallel_state.get_tensor_model_parallel_src_rank()
        torch.distributed.broadcast(tensor.view(-1).view(torch.uint8), source, group=group)  # no backend knows int16


def cut(tensors: Tensors, fields: Sequence[Field]) -> Tensors:
    """The part of this context-parallel rank: what runs along the tokens is cut as they are."""
    size, rank = parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()
    along = {f.name: context_slice(tensors[f.name], f.along, rank, size) for f in fields if f.along}
    return {**tensors, **along}


def require_same_data(splits: Mapping[str, Any], **more: Any) -> None:
    """Raise ConfigError unless the ranks that read in step have opened the same splits.

    By data-parallel groups and then by those that hold one model: together they tie all ranks to each other. Also those
    that read nothing come here, as to Megatron's own builder, since all decide on metrics and weights.
    """
    if not torch.distributed.is_initialized():
        return
    facts = {**{name: getattr(one, "blend", one).facts() for name, one in splits.items()}, **more}
    require_same("the training data", facts, parallel_state.get_data_parallel_group(with_context_parallel=True))
    require_same("the training data", facts, parallel_state.get_model_parallel_group())


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
