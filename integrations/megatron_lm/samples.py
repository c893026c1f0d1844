"""One sample as Megatron's GPTDataset hands it out, from tokens and the places where documents end.

GPTDataset (megatron/core/datasets/gpt_dataset.py, `__getitem__` and `_get_ltor_masks_and_position_ids`) looks for the
end-of-document token; here the borders are given, so that they may come from the document table, and every mask is
computed without a loop over documents. Where each document ends in that token, and holds no other one, both agree.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from conceptloader.errors import ConfigError

Sample = dict[str, torch.Tensor]
Ints = npt.NDArray[np.int64]

STOCK_KEYS = ("tokens", "labels", "loss_mask", "position_ids", "attention_mask", "cu_seqlens", "max_seqlen")


@dataclass(frozen=True, kw_only=True)
class SampleRules:
    """What Megatron's command line says about a sample."""

    seq_length: int
    reset_position_ids: bool = False  # --reset-position-ids
    reset_attention_mask: bool = False  # --reset-attention-mask
    eod_mask_loss: bool = False  # --eod-mask-loss
    create_attention_mask: bool = True  # not --no-create-attention-mask-in-dataloader
    inter_document_masking: bool = False  # --dataloader-inter-document-masking
    pad: int = -1  # token id never trained on; -1 if the tokenizer has none of its own

    @property
    def needs_borders(self) -> bool:
        """Whether a sample depends on where documents start."""
        return self.reset_position_ids or self.reset_attention_mask or self.inter_document_masking

    @classmethod
    def of(cls, config: Any, pad: int) -> "SampleRules":
        """From a GPTDatasetConfig; `pad` as MegatronDataset.__init__ chose it."""
        if not config.add_extra_token_to_sequence:
            raise ConfigError(
                "add_extra_token_to_sequence: found False, expected True: a window holds the label of its last token"
            )
        if config.hybrid_context_parallel:
            raise ConfigError("--hybrid-context-parallel: not supported, it needs samples of differing length")
        return cls(
            seq_length=config.sequence_length,
            reset_position_ids=config.reset_position_ids,
            reset_attention_mask=config.reset_attention_mask,
            eod_mask_loss=config.eod_mask_loss,
            create_attention_mask=config.create_attention_mask,
            inter_document_masking=getattr(config, "inter_document_masking", False),
            pad=pad,
        )


def make_sample(
    tokens: Ints, labels: Ints, loss_mask: npt.NDArray[np.float32], starts: Ints, pieces: Ints, rules: SampleRules
) -> Sample:
    """A sample of S = rules.seq_length tokens.

    Args:
        tokens, labels: int64[S]; label j belongs behind token j.
        loss_mask: float32[S], with --eod-mask-loss already applied.
        starts: positions in (0, S) where a document starts, ascending: for the resets.
        pieces: positions in (0, S) where --dataloader-inter-document-masking starts a new sequence, ascending.

    Returns: tokens, labels, position_ids int64[S] and loss_mask float32[S]; with inter_document_masking also cu_seqlens
        int32[S + 1] (filled up with S) and max_seqlen int32[]; else, if asked for, attention_mask bool[1, S, S], True
        where attention is forbidden. The arguments are left as they are.
    """
    length = rules.seq_length
    loss_mask = np.where(labels == rules.pad, np.float32(0), loss_mask)
    tokens = np.where(tokens == rules.pad, 0, tokens)  # a padding id may lie outside the embedding
    labels = np.where(labels == rules.pad, 0, labels)
    resets = pieces if rules.inter_document_masking else starts if rules.reset_position_ids else starts[:0]
    sample = {
        "tokens": torch.from_numpy(tokens),
        "labels": torch.from_numpy(labels),
        "loss_mask": torch.from_numpy(loss_mask),
        "position_ids": torch.from_numpy(positions_since(resets, length)),
    }
    if rules.inter_document_masking:
        borders = np.concatenate(([0], pieces, [length]))
        cu_seqlens = np.full(length + 1, length, np.int32)
        cu_seqlens[: len(borders)] = borders
        sample["cu_seqlens"] = torch.from_numpy(cu_seqlens)
        sample["max_seqlen"] = torch.tensor(int(np.diff(borders).max()), dtype=torch.int32)
    elif rules.create_attention_mask:
        sample["attention_mask"] = forbidden_attention(starts if rules.reset_attention_mask else starts[:0], length)
    return sample


def positions_since(starts: Ints, length: int) -> Ints:
    """int64[length]: the distance of each position from the last start at or before it (0 is always one)."""
    origin = np.zeros(length, np.int64)
    origin[starts] = starts
    positions: Ints = np.arange(length) - np.maximum.accumulate(origin)
    return positions


def forbidden_attention(starts: Ints, length: int) -> torch.Tensor:
    """bool[1, length, length]: True where query row must not see key column (the future, or another document)."""
    mask = torch.ones((length, length), dtype=torch.bool).triu_(1)
    if len(starts):
        document = torch.zeros(length, dtype=torch.int32)
        document[torch.from_numpy(starts)] = 1
        document = document.cumsum(0, dtype=torch.int32)
        mask |= document[:, None] != document[None, :]
    return mask.unsqueeze(0)
