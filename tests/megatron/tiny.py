"""A model of a few parameters whose losses depend on tokens, labels, position ids and the attention mask."""

import torch
from torch.nn.functional import cross_entropy, softmax

VOCABULARY, LENGTH, WIDTH = 256, 16, 8


def parameters():
    """The same at every call."""
    draw = torch.Generator().manual_seed(3)
    shapes = {"tokens": (VOCABULARY, WIDTH), "positions": (LENGTH, WIDTH), "output": (WIDTH, VOCABULARY)}
    return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def token_losses(of, tokens, positions, forbidden, labels):
    """float32 [B, S]; all arguments int64 [B, S], but forbidden: bool [B, S, S]."""
    hidden = of["tokens"][tokens] + of["positions"][positions]
    scores = (hidden @ hidden.transpose(1, 2)).masked_fill(forbidden, float("-inf"))
    logits = (softmax(scores / WIDTH, dim=-1) @ hidden) @ of["output"]
    return cross_entropy(logits.transpose(1, 2), labels, reduction="none")
