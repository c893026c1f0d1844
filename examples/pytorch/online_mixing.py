"""torchrun --nproc_per_node 2 online_mixing.py: weights by loss while it trains (after Albalak et al., 2023, "Efficient
Online Data Mixing": EXP3 whose reward is the loss of a dataset). Started again, it goes on where it was saved."""

import json
import math
import os
import sys

import torch
from torch.nn.functional import cross_entropy

import conceptloader as cl

STEPS, EVERY, SAVE, BATCH = int(sys.argv[1]), 4, 6, 12
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(1000, 32), torch.nn.Linear(32, 1000))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
parallel = torch.nn.parallel.DistributedDataParallel(model)
loader = cl.make_dataloader(
    "run.yaml", dp_rank=rank, dp_size=ranks, micro_batch_size=BATCH // ranks, num_samples=STEPS * BATCH
)
names = loader.blend.config.names
rewards, shares, step = [0.0] * len(names), [1 / len(names)] * len(names), 0
if os.path.exists("checkpoint.pt"):
    saved = torch.load("checkpoint.pt")
    model.load_state_dict(saved["model"])
    loader.load_state_dict(saved["loader"])
    rewards, shares, step = saved["mixing"]
loader.log_start(".", step)

trained = open(f"trained.{rank}.jsonl", "a", buffering=1)  # noqa: SIM115 - for the test
for batch in loader:
    every = cross_entropy(parallel(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none")
    losses = (every * batch["loss_mask"]).sum(1) / batch["loss_mask"].sum(1).clamp(min=1)
    losses.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(json.dumps([step, batch["sample_index"].tolist(), batch["dataset_id"].tolist()]), file=trained)
    step += 1

    sums = torch.zeros(2, len(names), dtype=torch.float64)  # loss and samples of each dataset, over all ranks
    sums[0].index_add_(0, batch["dataset_id"], losses.detach().double())
    sums[1].index_add_(0, batch["dataset_id"], torch.ones(len(losses), dtype=torch.float64))
    torch.distributed.all_reduce(sums)
    for k, (loss, count) in enumerate(sums.T.tolist()):
        if count:
            rewards[k] = 0.9 * rewards[k] + 0.1 * loss / count / shares[k]
    if step % EVERY == 0:
        explore = 1 / math.sqrt(len(names) * (1 + step / EVERY))
        weights = [math.exp(explore * (reward - max(rewards))) for reward in rewards]
        shares = [round(0.9 * weight / sum(weights) + 0.1 / len(names), 6) for weight in weights]
        loader.set_weights(dict(zip(names, shares, strict=True)))
    if step % SAVE == 0 and rank == 0:
        state = {"model": model.state_dict(), "loader": loader.state_dict(), "mixing": (rewards, shares, step)}
        torch.save(state, "checkpoint.tmp")
        os.replace("checkpoint.tmp", "checkpoint.pt")
torch.distributed.destroy_process_group()
