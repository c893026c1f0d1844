"""1e15 tokens, 100,000 shards, 1,024 datasets, 100 phases, 16,384 ranks: start, memory and lookups, without the
machines. The datasets are manifests over holes: what is measured is everything but the reading of data."""

import json

from data import ROOT, hollow
from harness import US, Report, program

SEQ_LEN, TOKENS, RANKS = 4096, 10**15, 16_384
LAST = 10**9  # samples of the run

# CPU seconds and own MB of a process that opens the configuration, and of its first batch; then microseconds of a
# sample's place in the blend and shuffle, and of a window read, both random.
PROGRAM = """
import json, time
import numpy as np
import conceptloader as cl
from conceptloader.loader.batch.open import open_reader
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.schedule import BatchSchedule
from harness import own_mb
before, start = own_mb(), time.process_time()
blend = cl.open_blend(cl.load_config(json.load(open({config!r}))))
opened, memory = time.process_time() - start, own_mb() - before
partition = Partition(micro_batch_size=4, dp_size={ranks}, scheme="strided")
plan = Plan(partition=partition, schedule=BatchSchedule.constant(4 * {ranks}))
start = time.process_time()
reader = open_reader(blend)
reader.read(plan.micro_batches(0, 5)[0])
first, after = time.process_time() - start, own_mb() - before
samples = np.random.default_rng(0).integers(0, {last}, 200_000).astype(np.uint64)
def timed(function, units):
    times = []
    for _ in range(4):
        start = time.process_time()
        function()
        times.append((time.process_time() - start) * 1e6 / units)
    return min(times)
lookup = timed(lambda: blend.order.sample_many(samples), len(samples))
few = samples[:1024].reshape(-1, 16)
def windows():
    for row in few:
        reader.read(row)
window = timed(windows, few.size)
print([opened, memory, first, after, lookup, window], flush=True)
"""
ROWS = [
    ("open the configuration", "s"), ("memory then", "MB"), ("first batch of a rank", "s"), ("memory after it", "MB"),
    ("order: a random sample", "us"), ("read: a random window", "us"),
]  # fmt: skip


def configuration(name, datasets, shards, phases):
    """`shards` and 1e15 tokens in all. One of several phases draws from 64 datasets, or all if they are fewer."""
    each = shards // datasets
    names = [f"d{k:04d}" for k in range(datasets)]
    paths = {key: hollow(f"{name}-{key}", each, TOKENS // (each * datasets)) for key in names}
    drawn = range(min(64, datasets) if phases > 1 else datasets)
    chosen = [[names[(16 * at + k) % datasets] for k in drawn] for at in range(phases)]
    config = {
        "seq_len": SEQ_LEN,
        "datasets": {key: {"path": path} for key, path in paths.items()},
        "phases": [
            {"at": at * LAST // phases, "weights": {key: 1 + (7 * k + 13 * at) % 101 for k, key in enumerate(some)}}
            for at, some in enumerate(chosen)
        ],
    }
    file = ROOT / f"{name}.yaml"
    file.write_text(json.dumps(config))
    return file


report = Report("scale")
cases = {
    US: configuration("scale-one", 1, 1_000, 1),
    "100,000 shards": configuration("scale-shards", 1, 100_000, 1),
    "1,024 datasets, 100 phases": configuration("scale-datasets", 1024, 10_240, 100),
}
results = {}
for name, file in cases.items():
    code = PROGRAM.format(config=str(file), ranks=RANKS, last=LAST)
    results[name] = [program(code) for _ in range(2)][1]  # the first warms the page cache
for column, (row, unit) in enumerate(ROWS):
    report.add(f"1e15 tokens: {row}", unit, {name: [found[column]] for name, found in results.items()})
report.finish()
