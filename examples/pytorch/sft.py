"""Fine-tuning on packs of conversations, with attention that stays inside each of them.

Kill it at any moment and start it again, with `python sft.py` or with torchrun on 1, 2, 4 or 8 ranks. docs/packing.md
says how sft.yaml and its data are made.
"""

import os

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import conceptloader as cl

BATCH, STEPS, WIDTH, HEADS, LAYERS = 8, 24, 64, 4, 2


class Model(nn.Module):
    def __init__(self, vocabulary, length):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(length, WIDTH)
        options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, **options) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, input_ids, position_ids, mask):
        x = self.tokens(input_ids) + self.positions(position_ids)
        for block in self.blocks:
            x = block(x, mask.repeat_interleave(HEADS, 0))
        return self.head(x)


def attention_mask(cu_seqlens, shape):
    """bool [B, S, S]: False where a token may look at another, in its own sequence and not ahead.

    On a GPU give cu_seqlens and max_seqlen to a kernel for sequences of several lengths instead.
    """
    borders = torch.zeros(shape[0] * shape[1], dtype=torch.int32)
    borders[cu_seqlens[1:-1].long()] = 1
    sequence = borders.cumsum(0).view(shape)
    return ~(sequence[:, :, None] == sequence[:, None, :]).tril()


rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
loader = cl.make_dataloader("sft.yaml", dp_rank=rank, dp_size=ranks, micro_batch_size=BATCH // ranks)
model = Model(loader.blend.datasets["chats"].tokenizer.vocab_size, loader.blend.config.seq_len)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
parts = {"model": model, "optimizer": optimizer, "loader": loader}
if os.path.exists("sft.pt"):
    for name, state in torch.load("sft.pt").items():
        parts[name].load_state_dict(state)
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
        torch.save({name: part.state_dict() for name, part in parts.items()}, "sft.pt.new")
        os.replace("sft.pt.new", "sft.pt")
    if step >= STEPS:
        break
