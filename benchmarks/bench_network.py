"""Windows of 4,097 tokens from files of which every read takes 1 ms longer (an interposed pread), in batches of 16.

A process each: samples a second after the first batch. Nothing counts as cached: a page cache's part is not seen.
"""

import importlib.util
import subprocess
from pathlib import Path

from data import ROOT, corpus
from harness import US, Report, program

BATCH, BATCHES, LATE_US, TIMEOUT_S = 16, 40, 1000, 300
HERE = Path(__file__).parent

START = """
import os, time
import torch
torch.set_num_threads(1)
"""
OURS = """
import conceptloader as cl
loader = cl.make_dataloader({{"seq_len": 4096, "datasets": {{"web": {{"path": {path!r}}}}}, "tracks": {tracks},
    "loader": {{"num_threads": {threads}, "prefetch_batches": {prefetch}}}}}, micro_batch_size={batch})
batches = iter(loader)
"""
DATATROVE = """
from datatrove.utils.dataset import DatatroveFileDataset
from torch.utils.data import DataLoader, RandomSampler
dataset = DatatroveFileDataset({stream!r}, 4096, token_size=2)
sampler = RandomSampler(dataset, num_samples=({batches} + 9) * {batch})
batches = iter(DataLoader(dataset, batch_size={batch}, sampler=sampler, num_workers={threads}))
"""
FINISH = """
next(batches)
began = time.perf_counter()
for _ in range({batches} - 1):
    next(batches)
print([1e3 * (time.perf_counter() - began) / ({batches} - 1) / {batch}], flush=True)
os._exit(0)
"""


report = Report("network")
bare = Path(corpus("network-bare", tokens=1 << 23, span=0, shards=1))
spans = corpus("network-spans", tokens=1 << 23, shards=1)
library = ROOT / "late_reads.so"
subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "late_reads.c", "-ldl"], check=True)
late = {"LD_PRELOAD": str(library), "LATE_FOLDER": str(ROOT.resolve()), "LATE_US": str(LATE_US)}
asked = {"batch": BATCH, "batches": BATCHES, "stream": str(bare / "00000.stream.bin"), "path": str(bare)}
programs = {
    US: (OURS, {"threads": 2, "prefetch": 4, "tracks": {}}),
    "16 threads, 64 batches ahead": (OURS, {"threads": 16, "prefetch": 64, "tracks": {}}),
    "the same with concepts": (OURS, {"threads": 16, "prefetch": 64, "tracks": {"concepts": {}}, "path": spans}),
}
if importlib.util.find_spec("datatrove"):
    programs["datatrove, 2 workers"] = (DATATROVE, {"threads": 2})
    programs["datatrove, 8 workers"] = (DATATROVE, {"threads": 8})
found = {
    name: program(START + (text + FINISH).format(**{**asked, **more}), timeout=TIMEOUT_S, **late)
    for name, (text, more) in programs.items()
}
report.add(f"a window, {LATE_US / 1000:g} ms more a read", "ms", found)
report.finish()
