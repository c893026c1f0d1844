"""From a configuration to the first shuffled, blended batch: 10,000 shards, 1e12 tokens in sparse files."""

import json
import subprocess
import sys
from pathlib import Path

from data import ROOT
from harness import US, Report

SHARDS, SHARD_TOKENS = 10_000, 100_000_000
REPEATS = 5

OURS = """
import sys, time
import numpy as np, torch
import conceptloader as cl
from conceptloader.loader.torch import loader
from conceptloader.loader.batch import open as _
sys.path.insert(0, {here!r})
from harness import resident_mb
before, start = resident_mb(), time.perf_counter()
config = cl.load_config({config!r})
with cl.make_dataloader(config, dp_rank=0, dp_size=8, micro_batch_size=4, global_batch_size=32) as batches:
    next(iter(batches))
    print(time.perf_counter() - start, resident_mb() - before, flush=True)
"""
OLMO = """
import sys, time, glob
import numpy as np, torch
from olmo_core.data import NumpyDatasetConfig, TokenizerConfig, NumpyFSLDataset
sys.path.insert(0, {here!r})
from harness import resident_mb
before, start = resident_mb(), time.perf_counter()
paths = sorted(glob.glob({data!r} + "/*.stream.bin"))
ids = dict(pad_token_id=0, eos_token_id=1, vocab_size=50000)
dataset = NumpyFSLDataset(*paths, sequence_length=4096, dtype=np.uint16, **ids)
order = np.random.default_rng(0).permutation(np.arange(len(dataset), dtype=np.uint32))
dataset[int(order[0])]
print(time.perf_counter() - start, resident_mb() - before, flush=True)
"""
DATATROVE = """
import sys, time, os
import numpy as np, torch
from datatrove.utils.dataset import DatatroveFolderDataset
sys.path.insert(0, {here!r})
from harness import resident_mb
before, start = resident_mb(), time.perf_counter()
dataset = DatatroveFolderDataset({data!r}, 4096, filename_pattern="*.stream.bin", token_size=2)
dataset[len(dataset) // 2]
print(time.perf_counter() - start, resident_mb() - before, flush=True)
"""


def sparse_corpus(name: str) -> Path:
    """A token stream whose shards are holes: written with one small shard, then adopted by a manifest of 10,000."""
    from tests.corpora.sparse import sparse_dataset

    path = ROOT / name
    if not (path / "manifest.json").exists():
        sparse_dataset(path, shards=SHARDS, tokens_per_shard=SHARD_TOKENS)
    return path


def run(program: str) -> tuple[float, float]:
    """(seconds, MB) from a fresh process with warm caches."""
    output = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True)
    seconds, megabytes = output.stdout.split()[-2:]
    return float(seconds), float(megabytes)


report = Report("start")
data = sparse_corpus("sparse")
config = ROOT / "sparse.yaml"
config.write_text(
    json.dumps(
        {
            "seq_len": 4096,
            "datasets": {
                "web": {"path": str(data), "weight": 0.7, "split": [0, 0.5]},
                "code": {"path": str(data), "weight": 0.3, "split": [0.5, 1]},
            },
        }
    )
)
names = {"here": str(Path(__file__).parent), "config": str(config), "data": str(data)}
programs = {
    US: OURS,
    "OLMo-core, index of all windows": OLMO,
    "datatrove, unshuffled": DATATROVE,
}
for program in programs.values():
    run(program.format(**names))  # warm: page cache
results = {
    name: [run(program.format(**names)) for _ in range(2 if program in (OLMO, DATATROVE) else REPEATS)]
    for name, program in programs.items()
}
report.add("first batch", "s", {name: [seconds for seconds, _ in found] for name, found in results.items()})
report.add("growth of resident memory", "MB", {name: [size for _, size in found] for name, found in results.items()})
report.finish()
