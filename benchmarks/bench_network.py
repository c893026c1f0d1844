"""Windows of 4,097 tokens from files of which every read takes 1 ms longer (an interposed pread), in batches of 16.

A process each: samples a second after the first batch. Nothing counts as cached: a page cache's part is not seen.
"""

import subprocess

from data import HERE, ROOT, corpus, stream_of
from harness import US, Report, program

BATCH, BATCHES, LATE_US, TIMEOUT_S = 16, 40, 1000, 300

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

path = corpus("small-spans", tokens=1 << 23)
library = ROOT / "late_reads.so"
subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "late_reads.c", "-ldl"], check=True)
late = {"LD_PRELOAD": str(library), "LATE_FOLDER": str(ROOT.resolve()), "LATE_US": str(LATE_US)}
asked = {"batch": BATCH, "batches": BATCHES, "stream": stream_of(path), "path": path, "prefetch": 64, "tracks": {}}
found = {
    name: program(START + (text + FINISH).format(**{**asked, **more}), timeout=TIMEOUT_S, **late)
    for name, text, more in (
        (US, OURS, {"threads": 2, "prefetch": 4}),
        ("16 threads, 64 batches ahead", OURS, {"threads": 16}),
        ("the same with concepts", OURS, {"threads": 16, "tracks": {"concepts": {}}}),
        ("datatrove, 2 workers", DATATROVE, {"threads": 2}),
        ("datatrove, 8 workers", DATATROVE, {"threads": 8}),
    )
}
report = Report("network")
report.add(f"a window, {LATE_US / 1000:g} ms more a read", "ms", found)
report.finish()
