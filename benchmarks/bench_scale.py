"""1e15 tokens, 1,000,000 shards, 1,024 datasets, 100 phases, 16,384 ranks: start, memory and lookups, without the
machines. The datasets are manifests over holes: what is measured is everything but the reading of data."""

import json
import subprocess
import sys
from pathlib import Path

from data import ROOT, hollow
from harness import US, Report

SEQ_LEN, TOKENS, RANKS = 4096, 10**15, 16_384
REPEATS = 3

# Seconds and MB of: opening the configuration, the first batch of a rank; then microseconds of a sample index, of its
# place in the blend and of a window read at random, of a rank's indices in a step.
PROGRAM = """
import json, sys, time
import numpy as np, torch
import conceptloader as cl
from conceptloader import loader, batch
from conceptloader.batch.open import open_reader
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.schedule import BatchSchedule
sys.path.insert(0, {here!r})
from harness import resident_mb
cl.Permutation(10**6).forward(0)
before, start = resident_mb(), time.perf_counter()
blend = cl.open_blend(cl.load_config(json.load(open({config!r}))))
opened, memory = time.perf_counter() - start, resident_mb() - before
with cl.make_dataloader(blend.config, dp_rank=5, dp_size={ranks}, micro_batch_size=4) as batches:
    start = time.perf_counter()
    next(iter(batches))
    first, after = time.perf_counter() - start, resident_mb() - before
order, rng = blend.order, np.random.default_rng(0)
samples = rng.integers(0, {last}, 200_000).astype(np.uint64)
def timed(function, units):
    function()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e6 / units)
    return min(times)
lookup = timed(lambda: order.sample_many(samples), len(samples))
reader = open_reader(blend)
few = samples[:256].reshape(-1, 16)
window = timed(lambda: [reader.read(row) for row in few], few.size)
partition = Partition(micro_batch_size=4, dp_size={ranks}, scheme="strided")
plan = Plan(partition=partition, schedule=BatchSchedule.constant(4 * {ranks}))
steps = timed(lambda: [plan.micro_batches(step, 5) for step in range(1000)], 1000)
print(opened, memory, first, after, lookup, window, steps, flush=True)
"""
ROWS = {
    "open the configuration": ("s", 0), "memory after it": ("MB", 1), "first batch": ("s", 2),
    "memory after it, two copies of the tables": ("MB", 3), "order: a sample, at random": ("us", 4),
    "read: a window, at random": ("us", 5), "a rank's samples of a step": ("us", 6),
}  # fmt: skip


def configuration(name: str, datasets: int, shards: int, phases: int) -> Path:
    """`shards` and 1e15 tokens in all."""
    each = shards // datasets
    names = [f"d{k:04d}" for k in range(datasets)]
    paths = {key: hollow(f"{name}-{key}", each, TOKENS // (each * datasets)) for key in names}
    starts = [k * 10**9 // phases for k in range(phases)]
    weights = [{key: 1 + (7 * k + 13 * at) % 101 for k, key in enumerate(names)} for at in range(phases)]
    config = {
        "seq_len": SEQ_LEN,
        "datasets": {key: {"path": path} for key, path in paths.items()},
        "phases": [{"start": start, "weights": some} for start, some in zip(starts, weights, strict=True)],
    }
    file = ROOT / f"{name}.yaml"
    file.write_text(json.dumps(config))
    return file


def run(config: Path) -> list[float]:
    program = PROGRAM.format(here=str(Path(__file__).parent), config=str(config), ranks=RANKS, last=10**9)
    output = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True)
    return [float(word) for word in output.stdout.split()]


report = Report("scale")
cases = {
    US: configuration("scale-one", 1, 1_000, 1),
    "1,000,000 shards in one dataset": configuration("scale-shards", 1, 1_000_000, 1),
    "1,024 datasets, 100 phases": configuration("scale-datasets", 1024, 1024 * 10, 100),
    "1,024 datasets of 976 shards, 100 phases": configuration("scale-both", 1024, 1024 * 976, 100),
}
results = {name: [run(config) for _ in range(REPEATS)] for name, config in cases.items()}
for row, (unit, column) in ROWS.items():
    report.add(f"1e15 tokens: {row}", unit, {name: [one[column] for one in found] for name, found in results.items()})
report.finish()
