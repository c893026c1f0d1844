"""A small GPT, and the loss of a student that has a teacher's most likely tokens."""

from typing import Any

import torch
import torch.nn.functional as F
from model import Block
from prepare import VOCAB_SIZE
from torch import Tensor, nn

import conceptloader as cl

TOP = 8


class GPT(nn.Module):
    def __init__(self, seq_len: int, width: int, layers: int) -> None:
        super().__init__()
        self.seq_len = seq_len
        self.tokens, self.positions = nn.Embedding(VOCAB_SIZE, width), nn.Embedding(seq_len, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for weight in (self.tokens.weight, self.positions.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Logits [B, S, vocab]."""
        x = self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"])
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def language_losses(logits: Tensor, batch: dict[str, Any]) -> Tensor:
    """Nats [B, S]."""
    return F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")


def teacher_losses(logits: Tensor, batch: dict[str, Any]) -> Tensor:
    """Cross entropy [B, S] with the teacher's distribution: its TOP tokens one by one, all others as one.

    `teacher_ids` and `teacher_logprobs` [B, S, TOP] stand at the labels, as `logits` do.
    """
    mine = F.log_softmax(logits, -1).gather(-1, batch["teacher_ids"].long())
    theirs = batch["teacher_logprobs"].float().exp()
    rest = (1 - theirs.sum(-1)).clamp(0, 1)
    mine_rest = torch.log1p(-mine.exp().sum(-1).clamp(max=1 - 1e-6))
    return -(theirs * mine).sum(-1) - rest * mine_rest


def train(model: GPT, batches: Any, steps: int, losses: Any, rate: float = 4e-3) -> Any:
    """Yields after each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95))
    for step, batch in zip(range(steps), batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 20, 1.1 - step / steps)
        cl.token_mean(losses(model(batch), batch), batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield step
