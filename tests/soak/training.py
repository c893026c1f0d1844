"""One rank of a training without a model, in a process of its own: reads, records, saves, until it is killed."""

import json
import os
import signal
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from conceptloader import make_dataloader
from conceptloader.adapters import RunStart
from conceptloader.order.schedule import BatchSchedule
from conceptloader.torch.loader import Loader
from conceptloader.trace import BatchRecorder

STATE = "state.json"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of the training. Steps of `schedule` samples are dealt to dp_size ranks."""

    number: int
    config: dict[str, Any]
    directory: Path
    dp_size: int
    micro_batch_size: int
    schedule: BatchSchedule
    save_every: int
    stop_step: int | None = None


def start(launch: Launch) -> list[int]:
    """Fork the ranks. Returns: their process numbers."""
    barrier = get_context("fork").Barrier(launch.dp_size)
    processes = []
    for dp_rank in range(launch.dp_size):
        process = os.fork()
        if not process:
            code = 1
            try:
                _rank(launch, dp_rank, barrier)
                code = 0
            finally:
                os._exit(code)
        processes.append(process)
    return processes


def end(processes: list[int], rng: np.random.Generator | None = None) -> int:
    """Kill the ranks one after the other, as a scheduler does (None: wait for them). Returns: how many it killed."""
    order = processes if rng is None else [processes[k] for k in rng.permutation(len(processes))]
    if rng is not None:
        for process in order:
            os.kill(process, signal.SIGKILL)
    killed = 0
    for process in order:
        _, status = os.waitpid(process, 0)
        killed += os.WIFSIGNALED(status)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a rank failed by itself"
    return killed


def read_state(directory: Path) -> dict[str, Any] | None:
    path = directory / STATE
    return json.loads(path.read_text()) if path.exists() else None


def _rank(launch: Launch, dp_rank: int, barrier: Any) -> None:
    saved = read_state(launch.directory)
    barrier.wait()  # nobody saves before all have read
    loader = make_dataloader(
        launch.config,
        dp_rank=dp_rank,
        dp_size=launch.dp_size,
        micro_batch_size=launch.micro_batch_size,
        global_batch_size=launch.schedule,
    )
    step = 0
    if saved is not None:
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    loader.log_start(launch.directory, step)
    recorder = BatchRecorder(launch.directory / "record", launch.number, dp_rank, _start(launch, loader, step))
    batches = iter(loader)
    while launch.stop_step is None or step < launch.stop_step:
        size = launch.schedule.batch_size(loader.consumed_samples)
        for micro_batch in range(size // loader.run.partition.group):
            recorder.write(step, micro_batch, next(batches))
        step += 1
        barrier.wait()  # as the gradients' all-reduce: no rank is ever a step ahead
        if not dp_rank and step % launch.save_every == 0:
            text = json.dumps({"step": step, "loader": loader.state_dict()})
            (launch.directory / "state.tmp").write_text(text)
            os.rename(launch.directory / "state.tmp", launch.directory / STATE)
    recorder.close()


def _start(launch: Launch, loader: Loader, step: int) -> RunStart:
    return RunStart(
        step=step,
        consumed=loader.consumed_samples,
        batch=launch.schedule.rule,
        micro_batch_size=launch.micro_batch_size,
        dp_size=launch.dp_size,
        seq_len=loader.blend.config.seq_len,
        spec=loader.blend.spec.hash,
        scheme=loader.run.partition.scheme,
    )
