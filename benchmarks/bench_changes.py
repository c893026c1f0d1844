"""Weights that are set live at every step: what a change, the state, the log and questions about the past cost."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from harness import US, Report

import conceptloader as cl
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import open_run

MARKS = {8: (10, 1_000, 10_000), 50: (10, 1_000, 10_000), 1_024: (10, 300)}  # datasets -> changes
BATCH, TIMED = 8, 20
LOG = "conceptloader_runs.jsonl"


def timed(call: Callable[..., object], *args: Any, **options: Any) -> float:
    start = time.perf_counter()
    call(*args, **options)
    return (time.perf_counter() - start) * 1e3


def measure(folder: Path, datasets: int, marks: tuple[int, ...]) -> None:
    rng, names = random.Random(datasets), [f"dataset-{k:04}" for k in range(datasets)]
    path = write_dataset(folder / "data", random_documents(2_000, seed=1))
    config = {"seq_len": 512, "datasets": {one: {"path": str(path), "weight": 1} for one in names}}
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    loader = cl.batches(config, micro_batch_size=BATCH)
    loader.log_start(folder, 0)
    batches = iter(loader)
    usual = [timed(next, batches) for _ in range(TIMED)]
    changes: list[float] = []
    after: list[float] = []
    for change in range(1, max(marks) + 1):
        weights = {one: round(rng.random() + 0.01, 6) for one in names}
        changes.append(timed(loader.set_weights, weights, why=f"step {change}"))
        after.append(timed(next, batches))
        if change in marks:
            row = f"{datasets:,} datasets, after {change:,} changes"
            report.add(f"{row}: a change", "ms", {US: changes[-TIMED:]})
            report.add(f"{row}: its first batch", "ms", {US: after[-TIMED:], "any batch": usual})
            report.fact(f"{row}: state", US, len(str(loader.state_dict())), "bytes")
            report.fact(f"{row}: run log", US, os.path.getsize(folder / LOG) / change, "bytes a change")
            report.add(f"{row}: opening the past", "ms", {US: [timed(open_run, folder / "run.yaml", folder)]})
            order = open_run(folder / "run.yaml", folder).blend.order
            asked = [rng.randrange(loader.consumed_samples) for _ in range(TIMED)]
            report.add(f"{row}: what was sample t", "ms", {US: [timed(order.sample, t) for t in asked]})
            found = [order.sample(t) for t in asked]
            report.add(f"{row}: where was a window", "ms", {US: [timed(order.index_of_window, *one) for one in found]})
    loader.close()


report = Report("weights set live")
for datasets, marks in MARKS.items():
    with TemporaryDirectory() as name:
        measure(Path(name), datasets, marks)
report.finish()
