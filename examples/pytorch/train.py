"""torchrun --nproc_per_node 2 train.py; started again, on any number of ranks, it goes on where it was saved."""

import os
import signal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import conceptloader as cl

rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
dies_at = int(os.environ.get("DIES_AT", -1))  # for the sake of the example
model = nn.Sequential(nn.Embedding(257, 64), nn.Linear(64, 257))
optimizer = torch.optim.AdamW(model.parameters())
sizes = {"dp_rank": rank, "dp_size": ranks, "micro_batch_size": 12 // ranks}
loader = cl.make_dataloader("run.yaml", **sizes, num_samples=360, check_ranks=ranks > 1)
if os.path.exists("checkpoint.pt"):
    state = torch.load("checkpoint.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
loader.log_start("runs", loader.steps)  # a run log, to trace steps to documents
if ranks > 1:
    torch.distributed.init_process_group("gloo")
parallel = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
for batch in loader:
    losses = cross_entropy(parallel(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none")
    loss = cl.token_mean(losses, batch)  # over the labels with loss; 0 if the batch has none
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if loader.consumed_samples == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)
    if loader.consumed_samples % 120 == 0 and rank == 0:  # every 10 steps
        print(f"{loader.consumed_samples} samples, loss {loss.item():.2f}; {cl.decode(batch, loader)[0]}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save(state, "checkpoint.tmp")
        os.replace("checkpoint.tmp", "checkpoint.pt")  # keeps the old checkpoint until the new one is complete
