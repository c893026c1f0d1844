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
        block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, input_ids, position_ids, mask):
        x = self.tokens(input_ids) + self.positions(position_ids)
        return self.head(self.blocks(x, mask.repeat_interleave(HEADS, 0)))


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
parallel = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
for batch in loader:
    mask = attention_mask(batch["cu_seqlens"], batch["input_ids"].shape)
    logits = parallel(batch["input_ids"], batch["position_ids"], mask)
    losses = cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    tokens = batch["loss_mask"].sum()
    if ranks > 1:  # every token of the step counts alike, whatever rank has it
        torch.distributed.all_reduce(tokens)
    loss = cl.token_mean(losses, batch, tokens / ranks)  # the gradients are means over the ranks
    loss.backward()
    shown = loss.detach() / ranks
    if ranks > 1:
        torch.distributed.all_reduce(shown)
    optimizer.step()
    optimizer.zero_grad()
    step = loader.consumed_samples // BATCH
    if rank == 0:
        print(f"step {step} loss {shown.item():.5f} tokens {int(tokens)}", flush=True)
        torch.save({name: part.state_dict() for name, part in parts.items()}, "sft.pt.new")
        os.replace("sft.pt.new", "sft.pt")
    if step >= STEPS:
        break
