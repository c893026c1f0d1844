"""A get_batch for pretraining scripts of one's own: Megatron's keys and the concept tensors in one broadcast."""

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state

from conceptloader.errors import ConfigError

from .iterators import ConceptReader, SplitIterator, share
from .samples import SampleRules
from .wire import Field, Tensors, context_slice


def stock_fields(rules: SampleRules) -> tuple[Field, ...]:
    """The tensors of a sample that GPTDataset has too, as samples.make_sample returns them."""
    length = rules.seq_length
    fields = [
        Field("tokens", torch.int64, (length,), sequence=True),
        Field("labels", torch.int64, (length,), sequence=True),
        Field("loss_mask", torch.float32, (length,), sequence=True),
        Field("position_ids", torch.int64, (length,), sequence=True),
    ]
    if rules.inter_document_masking:
        fields += [Field("cu_seqlens", torch.int32, (length + 1,)), Field("max_seqlen", torch.int32)]
    elif rules.create_attention_mask:
        fields.append(Field("attention_mask", torch.bool, (1, length, length)))
    return tuple(fields)


@dataclass(frozen=True, kw_only=True)
class BatchReader:
    """rules: what a sample holds. concepts: what goes to the configured stages besides."""

    rules: SampleRules
    concepts: ConceptReader

    def __call__(self, data_iterator: Any, vp_stage: int | None = None, micro_batch_size: int | None = None) -> Tensors:
        """Call once in each forward step, on all ranks of the stage. A stage that needs nothing gets {}.

        Returns: on the first and last pipeline stage tokens, labels, position_ids int64 [B, S], loss_mask float32
            [B, S] and, if the rules ask for it, attention_mask bool [B, 1, S, S]; on the concept stages those tensors
            too. Everything is cut for context parallelism. With inter_document_masking the samples of the micro batch
            are one sequence [1, B * S], and cu_seqlens int32 [n + 1] and max_seqlen int32 [] are there on every stage.
        """
        stock = stock_fields(self.rules) if self.reads_tokens(vp_stage) else ()
        extra = tuple(self.concepts.fields) if self.concepts.stage.here(vp_stage) else ()
        if not stock and not extra:
            return {}
        batch = None
        if parallel_state.get_tensor_model_parallel_rank() == 0:
            if data_iterator is None:
                raise ConfigError("get_batch: found no data iterator on a rank that reads data; build it there as well")
            batch = next(data_iterator)
            if isinstance(data_iterator, SplitIterator) and extra:
                batch = {**batch, **data_iterator.take_concepts()}
        size = micro_batch_size or self.concepts.micro_batch_size
        tensors = share(batch, (*stock, *extra), size)
        found = self.concepts.cut({f.name: tensors[f.name] for f in extra}) if extra else {}
        return (self.cut({f.name: tensors[f.name] for f in stock}) if stock else {}) | found

    def reads_tokens(self, vp_stage: int | None = None) -> bool:
        """Whether the (virtual) stage of this process needs Megatron's own keys."""
        return self.rules.inter_document_masking or is_first_or_last_stage(vp_stage)

    def cut(self, batch: Tensors) -> Tensors:
        """The part of this context-parallel rank."""
        if self.rules.inter_document_masking:
            batch = merge_documents(batch, self.rules.seq_length)
        cp_rank = parallel_state.get_context_parallel_rank()
        cp_size = parallel_state.get_context_parallel_world_size()
        for key, tensor in batch.items():
            if key not in ("cu_seqlens", "max_seqlen"):
                batch[key] = context_slice(tensor, 2 if key == "attention_mask" else 1, cp_rank, cp_size)
        return batch


def merge_documents(batch: Tensors, length: int) -> Tensors:
    """Samples [B, S] with padded cu_seqlens [B, S + 1] as one sequence [1, B * S] with cu_seqlens int32 [n + 1]."""
    merged = {key: tensor.reshape(1, -1) for key, tensor in batch.items()}
    starts = [row[row < length] + b * length for b, row in enumerate(batch["cu_seqlens"])]
    end = torch.tensor([length * len(starts)], dtype=torch.int32, device=starts[0].device)
    merged["cu_seqlens"] = torch.cat((*starts, end)).int()
    merged["max_seqlen"] = batch["max_seqlen"].max()
    return merged


def is_first_or_last_stage(vp_stage: int | None = None) -> bool:
    """Whether this process holds the first or the last stage of the model."""
    virtual = parallel_state.get_virtual_pipeline_model_parallel_world_size()
    options = {"ignore_virtual": virtual is None, "vp_stage": vp_stage}
    return bool(parallel_state.is_pipeline_first_stage(**options) or parallel_state.is_pipeline_last_stage(**options))
