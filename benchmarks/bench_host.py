"""A host with 8 processes: memory of each with 223 datasets of 10,000 shards in all, beside one with torch alone."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from data import ROOT, hollow
from harness import US, Report

PROCESSES, DATASETS, SHARDS, BATCHES = 8, 223, 45, 2000

# Proportional size in MB and descriptors: of pages that processes share, each has its part. It waits for the others.
PROGRAM = """
import json, os, sys
def measured():
    rows = (line.split() for line in open("/proc/self/smaps_rollup"))
    return [int(row[1]) / 1e3 for row in rows if row[0] == "Pss:"][0], len(os.listdir("/proc/self/fd"))
import torch
def say(*found):
    print(json.dumps(found), flush=True)
    sys.stdin.readline()
say(0)
say(*measured())
if {loads}:
    import conceptloader as cl
    loader = cl.make_dataloader({config!r}, micro_batch_size=4, dp_rank={rank}, dp_size=1024)
    batches = iter(loader)
    next(batches)
    say(0)
    say(*measured())
    for _ in range({batches}):
        next(batches)
    say(0)
    say(*measured())
"""


def configuration() -> str:
    names = [f"host-{k:03d}" for k in range(DATASETS)]
    datasets = {name: {"path": hollow(name, SHARDS, 10**8)} for name in names}
    file = ROOT / "host.yaml"
    file.write_text(json.dumps({"seq_len": 4096, "weights": "by_size", "datasets": datasets}))
    return str(file)


def measure(config: str) -> list[list[tuple[float, int]]]:
    """Of each stage, what each process says when all of them have come so far."""
    programs = [
        PROGRAM.format(loads=True, config=config, rank=rank, batches=BATCHES) for rank in range(PROCESSES)
    ]  # fmt: skip
    running = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], stdin=-1, stdout=-1, text=True)
        for program in programs
    ]

    def together() -> list[tuple[float, int]]:
        found = [json.loads(one.stdout.readline()) for one in running]  # type: ignore[union-attr]
        for one in running:
            one.stdin.write("\n")  # type: ignore[union-attr]
            one.stdin.flush()  # type: ignore[union-attr]
        return found

    stages = [together() for _ in range(6)][1::2]
    for one in running:
        one.wait()
    return stages


report = Report("host")
config = configuration()
stages = measure(config)
base = statistics.median(memory for memory, _ in stages[0])
report.fact("memory of a process that has imported torch", US, base, "MB")
for stage, name in zip(stages[1:], ("after the first batch", f"after {BATCHES:,} batches"), strict=True):
    report.fact(f"more, {name}", US, statistics.median(memory for memory, _ in stage) - base, "MB")
    report.fact(f"descriptors, {name}", US, max(descriptors for _, descriptors in stage), "")
print(f"  manifests: {Path(config).stat().st_size:,} bytes of configuration, {DATASETS} datasets", file=sys.stderr)
report.finish()
