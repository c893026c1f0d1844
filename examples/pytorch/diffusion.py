"""Noise for block-causal masked diffusion (as in Arriola et al., 2025, "Block Diffusion"), which any resume repeats.

Each block of a sample has a share t of its tokens replaced by a mask token, and the model predicts these from the rest
of the block and the clean blocks before it. What is replaced is drawn from `outputs.sample_seed`, a number
per sample: it depends on the seed and on the place in the run, not on ranks, batch sizes or restarts.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Noised(NamedTuple):
    """inputs: int64 [B, S], with mask tokens. weights: float32 [B, S], 1 / t where a token is to be predicted, else 0;
    divide the weighted sum of the losses by B * S. rates: float32 [B, blocks], t of each block."""

    inputs: Tensor
    weights: Tensor
    rates: Tensor


def noise(batch, mask_id, block, least=0.05):
    """Noise for the inputs of a batch, of which every block has one rate t from [least, 1)."""
    inputs = batch["input_ids"]
    size, blocks = inputs.shape[1], -(-inputs.shape[1] // block)
    rates, draws = torch.empty(len(inputs), blocks), torch.empty(inputs.shape)
    for row, number in enumerate(batch["sample_seed"].tolist()):
        generator = torch.Generator().manual_seed(number)
        # Rates spread over the blocks of a sample make less variance than rates that are drawn one by one.
        spread = (torch.rand(1, generator=generator) + torch.randperm(blocks, generator=generator) / blocks) % 1
        rates[row] = least + (1 - least) * spread
        draws[row] = torch.rand(size, generator=generator)
    each = rates.repeat_interleave(block, 1)[:, :size].to(inputs.device)
    masked = draws.to(inputs.device) < each
    return Noised(inputs.masked_fill(masked, mask_id), masked / each, rates)


def loss(logits, batch, noised):
    """logits: [B, S, V] of the noised half. An input is predicted at its own place, not at that before it."""
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch["input_ids"], reduction="none")
    return (losses * noised.weights).sum() / losses.numel()
