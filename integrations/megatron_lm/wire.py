"""Tensors that Megatron does not know, on their way to every rank that asks: tensor-parallel broadcast, context slices.

All shapes follow from the config, so that nobody has to announce them: one broadcast of one buffer per micro batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from conceptloader.batch.layout import BatchLayout
from conceptloader.errors import ConfigError

Tensors = dict[str, torch.Tensor]

TORCH_TYPES = {"i8": torch.int64, "i4": torch.int32, "u1": torch.uint8, "f4": torch.float32}
FROM_STOCK = frozenset({"input_ids", "labels", "loss_mask", "position_ids"})  # they go by Megatron's names


@dataclass(frozen=True)
class Field:
    """One tensor of a sample. `shape` leaves the batch out; `sequence` says that shape[0] runs over the tokens."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...] = ()
    sequence: bool = False


def fields_of(layout: BatchLayout) -> tuple[Field, ...]:
    """What a sample of ours has beside GPTDataset's keys.

    Raises ConfigError for `layout: ragged`: Megatron's loader stacks samples, so every one must have the same shape.
    """
    for track in layout.tracks:
        if track.ragged:
            raise ConfigError(
                f"concepts.{track.name}.layout: found ragged, expected padded: Megatron needs fixed shapes"
            )
    fields = []
    for name, spec in layout.arrays(1).items():
        if name not in FROM_STOCK:
            # BlendedDataset's dataset_id is an int16.
            dtype = torch.int16 if name == "dataset_id" else TORCH_TYPES[spec.dtype]
            along = name == "document_ids" or name.endswith("_span_index")
            fields.append(Field(name, dtype, spec.shape[1:], sequence=along))
    return tuple(fields)


def aligned(fields: Sequence[Field]) -> list[Field]:
    """Wide types first, so that each field of a packed buffer begins at a multiple of its item size."""
    return sorted(fields, key=lambda f: -f.dtype.itemsize)


def buffer_bytes(fields: Sequence[Field], batch: int) -> int:
    """Size of the packed buffer of `batch` samples."""
    return sum(batch * prod(f.shape) * f.dtype.itemsize for f in fields)


def checked(tensors: Mapping[str, torch.Tensor], fields: Sequence[Field], batch: int) -> Tensors:
    """The tensors of `fields`. ConfigError if one is missing, or of another shape or dtype."""
    for f in fields:
        tensor, expected = tensors.get(f.name), (batch, *f.shape)
        found = None if tensor is None else (tuple(tensor.shape), tensor.dtype)
        if found != (expected, f.dtype):
            raise ConfigError(
                f"batch[{f.name!r}]: found {found or 'nothing'}, expected shape {expected} of {f.dtype}; "
                "the same config and micro batch size must be set on every rank"
            )
    return {f.name: tensors[f.name] for f in fields}


def pack(tensors: Mapping[str, torch.Tensor], fields: Sequence[Field]) -> torch.Tensor:
    """One uint8 buffer of all `fields`."""
    return torch.cat([tensors[f.name].contiguous().view(-1).view(torch.uint8) for f in aligned(fields)])


def unpack(buffer: torch.Tensor, fields: Sequence[Field], batch: int) -> Tensors:
    """The tensors of a packed buffer, as views of it."""
    tensors, at = {}, 0
    for f in aligned(fields):
        size = batch * prod(f.shape) * f.dtype.itemsize
        tensors[f.name] = buffer[at : at + size].view(f.dtype).view(batch, *f.shape)
        at += size
    return tensors


def context_slice(tensor: torch.Tensor, dim: int, cp_rank: int, cp_size: int) -> torch.Tensor:
    """The part of a context-parallel rank: chunks cp_rank and 2 * cp_size - 1 - cp_rank of 2 * cp_size along `dim`.

    As megatron/core/utils.py get_batch_on_this_cp_rank deals out the tokens: every rank has equal work.
    """
    if cp_size == 1:
        return tensor
    if tensor.shape[dim] % (2 * cp_size):
        raise ConfigError(
            f"sequence of {tensor.shape[dim]} tokens: expected a multiple of 2 * context_parallel_size = {2 * cp_size}"
        )
    chunks = tensor.chunk(2 * cp_size, dim)
    return torch.cat((chunks[cp_rank], chunks[2 * cp_size - 1 - cp_rank]), dim)


def merge_samples(tensors: Tensors, fields: Sequence[Field], seq_length: int) -> Tensors:
    """A micro batch as the one long sequence that --dataloader-inter-document-masking trains on.

    Fields along the sequence become [1, B * S] and point into span slots of all samples: a `_span_index` k of sample b
    into slot b * max_spans + k, and `_spans` of sample b begin at b * S. The other fields become [1, B * ..., ...].
    """
    merged = {}
    for f in fields:
        tensor = tensors[f.name]
        batch = tensor.shape[0]
        sample = torch.arange(batch, dtype=tensor.dtype, device=tensor.device)
        if f.name.endswith("_span_index"):
            spans = next(g.shape[0] for g in fields if g.name == f.name.removesuffix("_index") + "s")
            tensor = torch.where(tensor < 0, tensor, tensor + (sample * spans)[:, None])
        elif f.name.endswith("_spans") and len(f.shape) == 2:
            tensor = tensor + (sample * seq_length)[:, None, None]
        merged[f.name] = tensor.reshape(1, -1, *f.shape[1:]) if f.shape else tensor
    return merged
