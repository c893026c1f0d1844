"""torchrun --nproc_per_node 2 online_mixing.py: weights by loss while it trains, with `mixing: {odm: {every: 4}}` in
run.yaml. Started again, it goes on where it was saved."""

import json
import os
import sys

import torch
from torch.nn.functional import cross_entropy

import conceptloader as cl

STEPS, SAVE, BATCH = int(sys.argv[1]), 6, 12
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(1000, 32), torch.nn.Linear(32, 1000))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
parallel = torch.nn.parallel.DistributedDataParallel(model)
loader = cl.make_dataloader(
    "run.yaml", dp_rank=rank, dp_size=ranks, micro_batch_size=BATCH // ranks, num_samples=STEPS * BATCH
)
step = 0
if os.path.exists("checkpoint.pt"):
    saved = torch.load("checkpoint.pt")
    model.load_state_dict(saved["model"])
    loader.load_state_dict(saved["loader"])  # with the state of the mixing
    step = saved["step"]
loader.log_start(".", step)

trained = open(f"trained.{rank}.jsonl", "a", buffering=1)  # noqa: SIM115 - for the test
for batch in loader:
    every = cross_entropy(parallel(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none")
    loader.losses.add(every, batch)
    cl.token_mean(every, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
    print(json.dumps([step, batch["sample_index"].tolist(), batch["dataset_id"].tolist()]), file=trained)
    step += 1
    loader.observe_step()  # over all ranks; sets weights, before the state is saved
    if step % SAVE == 0 and rank == 0:
        torch.save({"model": model.state_dict(), "loader": loader.state_dict(), "step": step}, "checkpoint.tmp")
        os.replace("checkpoint.tmp", "checkpoint.pt")
torch.distributed.destroy_process_group()
