"""A small language model with a concept bottleneck: what it says next goes through what it takes the text to be."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conceptloader as cl


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class BottleneckLM(nn.Module):
    """The state of each token becomes probabilities of the concepts, and `free` numbers for what these do not say; the
    next token is predicted from both, and from nothing else."""

    def __init__(self, vocab: int, concepts: int, seq_len: int, width: int = 96, free: int = 48) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(seq_len, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.concepts, self.free = nn.Linear(width, concepts), nn.Linear(width, free)
        self.said = nn.Linear(concepts + free, width)
        for weight in (self.tokens.weight, self.positions.weight):
            nn.init.normal_(weight, std=0.02)
        nn.init.constant_(self.concepts.bias, -2.0)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(logits [B, S, vocab], logits of the concepts [B, S, concepts])."""
        x = self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"])
        x = self.norm(self.blocks(x))
        concepts = self.concepts(x)
        said = self.said(torch.cat([concepts.sigmoid(), self.free(x)], -1))
        return F.linear(said, self.tokens.weight), concepts


def losses(batch: dict[str, Tensor], logits: Tensor, concepts: Tensor) -> tuple[Tensor, Tensor]:
    """(language loss, concept loss), both means: over tokens with loss, and over tokens that somebody annotated."""
    every = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    language = cl.token_mean(every, batch)
    # "Not here" is known of annotated tokens alone, be it with nothing: others have no part in the concept loss.
    known = cl.concepts.annotation_status(batch, "concepts").gt(0) & cl.concepts.annotation_status(
        batch, "concepts"
    ).lt(3)
    targets = cl.concepts.span_targets(batch, "concepts", concepts.shape[-1])
    index = batch["concepts_span_index"].clamp(min=0).long()[..., None].expand_as(concepts)
    wrong = F.binary_cross_entropy_with_logits(concepts, targets.gather(1, index), reduction="none").mean(-1)
    return language, (wrong * known).sum() / known.sum().clamp(min=1)


def span_scores(batch: dict[str, Tensor], concepts: Tensor) -> tuple[Tensor, Tensor]:
    """(logits, targets) of all spans of a batch, [n, concepts] both: what the model says at the last token of each."""
    targets, here = (
        cl.concepts.span_targets(batch, "concepts", concepts.shape[-1]),
        cl.concepts.span_mask(batch, "concepts"),
    )
    last = (batch["concepts_spans"][..., 1] - 1).clamp(min=0).long()[..., None].expand_as(targets)
    return concepts.gather(1, last)[here], targets[here]
