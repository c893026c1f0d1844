"""A training run without a model: what matters is which samples it takes, and that it can be killed at any moment."""

import argparse
import json
import os
import time
from pathlib import Path

import torch.distributed as dist

import conceptloader as cl
from conceptloader.trace import BatchRecorder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--global-batch-size", type=int, required=True)
    parser.add_argument("--micro-batch-size", type=int, required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    dp_rank, dp_size = dist.get_rank(), dist.get_world_size()
    loader = cl.make_dataloader(
        args.config,
        dp_rank=dp_rank,
        dp_size=dp_size,
        micro_batch_size=args.micro_batch_size,
        global_batch_size=args.global_batch_size,
    )
    checkpoint = args.output / "checkpoint.json"
    first = 0
    if checkpoint.exists():
        state = json.loads(checkpoint.read_text())
        first = state["step"]
        loader.load_state_dict(state["loader"])
    loader.log_start(args.output, first)
    dist.barrier()
    starts = cl.adapters.RunLog(args.output).starts
    recorder = BatchRecorder(args.output / "record", len(starts), dp_rank, starts[-1])
    batches = iter(loader)
    for step in range(first, args.steps):
        for micro_batch in range(args.global_batch_size // (args.micro_batch_size * dp_size)):
            recorder.write(step, micro_batch, next(batches))
            time.sleep(0.02)
        dist.barrier()
        if dp_rank == 0 and step % 3 == 2:
            temporary = checkpoint.with_suffix(".tmp")
            temporary.write_text(json.dumps({"step": step + 1, "loader": loader.state_dict()}))
            os.replace(temporary, checkpoint)
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
