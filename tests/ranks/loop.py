"""A training without a model: reads, records, saves, until it is killed."""

import json
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist

import conceptloader as cl
from conceptloader.order.schedule import BatchSchedule
from conceptloader.trace import BatchRecorder
from tests.ranks.launch import Launch, die_at

STATE = "state.json"


def read_state(directory: Path) -> dict[str, Any]:
    path = directory / STATE
    return json.loads(path.read_text()) if path.exists() else {"step": 0}


def train(launch: Launch) -> None:
    """Of options["batch"] samples a step, with changes of it (see BatchSchedule), up to `steps` or for ever."""
    dist.init_process_group("gloo")
    dp_rank, dp_size = dist.get_rank(), dist.get_world_size()
    saved = read_state(launch.path)
    dist.barrier()  # nobody saves before all have read
    schedule = BatchSchedule(tuple((first, size) for first, size in launch.options["batch"]))
    loader = cl.make_dataloader(
        launch.config, dp_rank=dp_rank, dp_size=dp_size, micro_batch_size=launch.micro, global_batch_size=schedule
    )
    step = saved["step"]
    if step:
        loader.load_state_dict(saved["loader"])
    loader.log_start(launch.out, step)
    dist.barrier()
    recorder = BatchRecorder(launch.path / "record", launch.number, dp_rank, cl.adapters.RunLog(launch.out).starts[-1])
    batches = iter(loader)
    while step != launch.steps:
        size = schedule.batch_size(loader.consumed_samples)
        for micro_batch in range(size // loader.run.partition.group):
            recorder.write(step, micro_batch, next(batches))
        die_at(step)
        step += 1
        dist.barrier()  # as the gradients' all-reduce: no rank is ever a step ahead
        if not dp_rank and step % launch.save_at == 0:
            text = json.dumps({"step": step, "loader": loader.state_dict()})
            (launch.path / "state.tmp").write_text(text)
            os.rename(launch.path / "state.tmp", launch.path / STATE)
    recorder.close()
    loader.close()
