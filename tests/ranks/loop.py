"""A training without a model: reads, records, saves, until it is killed."""

import json
import os

import numpy as np
import torch.distributed as dist
import xxhash

import conceptloader as cl
from conceptloader.order.schedule import BatchSchedule
from tests.ranks.launch import die_at

STATE = "state.json"


def read_state(directory):
    path = directory / STATE
    return json.loads(path.read_text()) if path.exists() else {"step": 0}


def digests(batch):
    """Of all that a sample is trained on."""
    arrays = [np.asarray(batch[name]).astype("<f8") for name in ("dataset_id", "input_ids", "labels", "loss_mask")]
    return [xxhash.xxh3_64_hexdigest(b"".join(row.tobytes() for row in rows)) for rows in zip(*arrays, strict=True)]


def train(launch):
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
    number = len(cl.adapters.RunLog(launch.out).starts) - 1  # a launch may be killed before it is logged
    record = open(launch.path / f"record.{number}.{dp_rank}.jsonl", "x", buffering=1)  # noqa: SIM115
    batches = iter(loader)
    while step != launch.steps:
        size = schedule.batch_size(loader.consumed_samples)
        for micro_batch in range(size // loader.run.partition.group):
            batch = next(batches)
            line = {"step": step, "micro_batch": micro_batch, "dp_rank": dp_rank}
            line |= {"samples": batch["sample_index"].tolist(), "digests": digests(batch)}
            record.write(json.dumps(line) + "\n")
        die_at(step)
        step += 1
        dist.barrier()  # as the gradients' all-reduce: no rank is ever a step ahead
        if not dp_rank and step % launch.save_at == 0:
            text = json.dumps({"step": step, "loader": loader.state_dict()})
            (launch.path / "state.tmp").write_text(text)
            os.rename(launch.path / "state.tmp", launch.path / STATE)
    record.close()
    loader.close()
