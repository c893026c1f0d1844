"""A small GPT for benchmarks that need a training: pre-norm blocks, tied embeddings, no dropout."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class SmallGPT(nn.Module):
    """input_ids, labels, loss_mask [B, S] -> mean loss of the labels that have one."""

    def __init__(self, vocab: int, seq_len: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids) + self.places.weight[: input_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
        mask = loss_mask.flatten().to(losses.dtype)
        return (losses * mask).sum() / mask.sum().clamp(min=1)
