"""A training step on the processor: with the loader's batches, with columns, and with one batch that never changes.

Model and loader share the cores here, as in a crowded process. benchmarks/gpu.py is the same for a GPU.
"""

from pathlib import Path
from statistics import median

import numpy as np
import torch
from data import corpus
from gpu import Training, arguments, forever
from harness import US, Report

import conceptloader as cl

SEQ_LEN, BATCH, STEPS, ROUNDS = 128, 2, 8, 5
COLUMNS = {"ids": ("u4", 32), "probs": ("f2", 32)}


def with_columns(path: str) -> str:
    """Both written where the windows of a loader lie."""
    for name, (dtype, length) in COLUMNS.items():
        if (Path(path) / f"{name}.column.json").exists():
            continue
        loader = cl.batches({"seq_len": SEQ_LEN, "datasets": {"a": {"path": path}}}, micro_batch_size=64)
        values = np.ones((64, SEQ_LEN, length), dtype)
        with cl.column_writer(path, name, dtype, length, loader=loader) as writer:
            for batch, _ in zip(loader, range(30), strict=False):
                writer.write(batch, values)
            writer.finish(partial=True)
    return path


def loader(path: str, outputs: dict[str, object]) -> object:
    config = {"seq_len": SEQ_LEN, "datasets": {"a": {"path": path}}, "outputs": outputs}
    return cl.make_dataloader(config, micro_batch_size=BATCH)


torch.set_num_threads(1)
sizes = f"--device cpu --layers 2 --width 64 --heads 2 --seq-len {SEQ_LEN} --vocab 50000"
training = Training(arguments(sizes.split()))
path = with_columns(corpus("step", tokens=1 << 20, shards=1))
stored = {"columns": {name: {"at": "labels", "dtype": "stored", "missing": 0} for name in COLUMNS}}
loaders = {US: loader(path, {}), "conceptloader, u4[32] and f2[32] for each token": loader(path, stored)}
sources = {name: iter(one) for name, one in loaders.items()}
sources["a batch that never changes"] = forever(dict(next(sources[US])))
times: dict[str, dict[str, list[float]]] = {"step": {}, "waited": {}}
for number in range(ROUNDS + 1):
    for name, batches in sources.items():
        found = training.run(batches, STEPS)
        for key in times if number else ():  # the first is warm-up
            times[key].setdefault(name, []).append(found[key])
report = Report("step")
report.add(f"{BATCH} windows of {SEQ_LEN}, a small GPT on the processor", "ms", times["step"])
for name, waited in times["waited"].items():
    report.fact("of that, the wait in next()", name, median(waited), "ms")
for one in loaders.values():
    one.close()
report.finish()
