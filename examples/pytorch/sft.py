"""Fine-tuning on packs of conversations, with attention that stays inside each of them.

Kill it at any moment and start it again, with `python sft.py` or with torchrun on 1, 2, 4 or 8 ranks. docs/packing.md
says how sft.yaml and its data are made.
"""

import os

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import conceptloader as cl

BATCH, STEPS, WIDTH, HEADS, LAYERS = 8, 24, 64, 4, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x, mask):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, vocabulary, length):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, input_ids, position_ids, mask):
        x = self.tokens(input_ids) + self.positions(position_ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def attention_mask(cu_seqlens, shape):
    """bool [B, S, S]: True where a token may look at another, in its own sequence and not ahead.

    On a GPU give cu_seqlens and max_seqlen to a kernel for sequences of several lengths instead.
    """
    borders = torch.zeros(shape[0] * shape[1], dtype=torch.int32)
    borders[cu_seqlens[1:-1].long()] = 1
    sequence = borders.cumsum(0).view(shape)
    return (sequence[:, :, None] == sequence[:, None, :]).tril()


rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
loader = cl.make_dataloader("sft.yaml", dp_rank=rank, dp_size=ranks, micro_batch_size=BATCH // ranks)
model = Model(loader.blend.datasets["chats"].tokenizer.vocab_size, loader.blend.config.seq_len)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
if os.path.exists("sft.pt"):
    state = torch.load("sft.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
for batch in loader:
    mask = attention_mask(batch["cu_seqlens"], batch["input_ids"].shape)
    logits = model(batch["input_ids"], batch["position_ids"], mask)
    losses = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    loss = (losses * batch["loss_mask"].flatten()).sum()
    loss.backward()
    sums = torch.stack([loss.detach(), batch["loss_mask"].sum()])
    if ranks > 1:  # every token of the step counts alike, whatever rank has it
        for tensor in (sums, *(parameter.grad for parameter in model.parameters())):
            torch.distributed.all_reduce(tensor)
    for parameter in model.parameters():
        parameter.grad /= sums[1].clamp(min=1)
    optimizer.step()
    optimizer.zero_grad()
    step = loader.consumed_samples // BATCH
    if rank == 0:
        print(f"step {step} loss {float(sums[0] / sums[1].clamp(min=1)):.5f} tokens {int(sums[1])}", flush=True)
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save(saved, "sft.pt.new")
        os.replace("sft.pt.new", "sft.pt")
    if step >= STEPS:
        break
