"""A small GPT with a second head that says, for every token, which concepts the token's span carries."""

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


class ConceptGPT(nn.Module):
    """Returns (language loss, concept loss), both in nats per token, the second summed over the concepts."""

    def __init__(
        self, vocab: int, concepts: int, seq_len: int, width: int = 128, layers: int = 3, heads: int = 4
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(seq_len, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.concept_head = nn.Linear(width, concepts)
        for weight in (self.tokens.weight, self.positions.weight):
            nn.init.normal_(weight, std=0.02)
        nn.init.constant_(self.concept_head.bias, -3.0)  # most concepts are rare

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        x = self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"])
        x = self.norm(self.blocks(x))
        logits = F.linear(x, self.tokens.weight)
        language = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
        targets = concept_targets(batch, self.concept_head.out_features)
        concept = F.binary_cross_entropy_with_logits(self.concept_head(x), targets, reduction="none").sum(-1).mean()
        return cl.token_mean(language, batch), concept


def concept_targets(batch: dict[str, Tensor], concepts: int) -> Tensor:
    """What each input token carries: float32 [B, S, concepts], 1 where its span has the concept."""
    ids = batch["concepts_ids"]  # [B, spans, concepts of a span], -1 where there is none
    spans = ids.new_zeros(*ids.shape[:2], concepts + 1, dtype=torch.float32)
    spans.scatter_(-1, ids.masked_fill(ids < 0, concepts), 1.0)
    spans[..., concepts] = 0  # the column that took the padding
    index = batch["concepts_span_index"].long()  # [B, S], -1 outside of any span
    of_token = spans[..., :concepts].gather(1, index.clamp(min=0)[..., None].expand(-1, -1, concepts))
    return of_token * (index >= 0)[..., None]
