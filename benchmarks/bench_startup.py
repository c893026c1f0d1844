"""From a configuration to the first shuffled, blended batch: 10,000 shards, 1e12 tokens in sparse files."""

import json

from data import ROOT
from harness import US, Report, program

SHARDS, SHARD_TOKENS = 10_000, 100_000_000

OURS = """
import time
import numpy as np, torch
import conceptloader as cl
from conceptloader.loader.torch import loader
from conceptloader.loader.batch import open as _
from harness import resident_mb
before, start = resident_mb(), time.perf_counter()
config = cl.load_config({config!r})
with cl.make_dataloader(config, dp_rank=0, dp_size=8, micro_batch_size=4, global_batch_size=32) as batches:
    next(iter(batches))
    print([time.perf_counter() - start, resident_mb() - before], flush=True)
"""
OLMO = """
import glob, time
import numpy as np, torch
from olmo_core.data import NumpyDatasetConfig, TokenizerConfig, NumpyFSLDataset
from harness import resident_mb
before, start = resident_mb(), time.perf_counter()
paths = sorted(glob.glob({data!r} + "/*.stream.bin"))
ids = dict(pad_token_id=0, eos_token_id=1, vocab_size=50000)
dataset = NumpyFSLDataset(*paths, sequence_length=4096, dtype=np.uint16, **ids)
order = np.random.default_rng(0).permutation(np.arange(len(dataset), dtype=np.uint32))
dataset[int(order[0])]
print([time.perf_counter() - start, resident_mb() - before], flush=True)
"""
DATATROVE = """
import time
import numpy as np, torch
from datatrove.utils.dataset import DatatroveFolderDataset
from harness import resident_mb
before, start = resident_mb(), time.perf_counter()
dataset = DatatroveFolderDataset({data!r}, 4096, filename_pattern="*.stream.bin", token_size=2)
dataset[len(dataset) // 2]
print([time.perf_counter() - start, resident_mb() - before], flush=True)
"""


def sparse_corpus(name):
    """A token stream whose shards are holes: written with one small shard, then adopted by a manifest of 10,000."""
    from tests.corpora.sparse import sparse_dataset

    path = ROOT / name
    if not (path / "manifest.json").exists():
        sparse_dataset(path, shards=SHARDS, tokens_per_shard=SHARD_TOKENS)
    return path


report = Report("start")
data = sparse_corpus("sparse")
config = ROOT / "sparse.yaml"
datasets = {
    "web": {"path": str(data), "weight": 0.7, "split": [0, 0.5]},
    "code": {"path": str(data), "weight": 0.3, "split": [0.5, 1]},
}
config.write_text(json.dumps({"seq_len": 4096, "datasets": datasets}))
results = {}
for name, text, repeats in (
    (US, OURS, 5), ("OLMo-core, index of all windows", OLMO, 2), ("datatrove, unshuffled", DATATROVE, 2)
):  # fmt: skip
    code = text.format(config=str(config), data=str(data))
    results[name] = [program(code) for _ in range(repeats + 1)][1:]  # the first warms the page cache
for k, (row, unit) in enumerate((("first batch", "s"), ("growth of resident memory", "MB"))):
    report.add(row, unit, {name: [one[k] for one in found] for name, found in results.items()})
report.finish()
