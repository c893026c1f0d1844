"""From a configuration to the first shuffled, blended batch, of one rank of 16,384: seconds, and growth of memory.

Token files are holes. Ours and the peers' have the same 10,000 files of 1e12 tokens; then ours 1e15 tokens in 100,000
shards. What a process imports is not counted.
"""

import json
import os
from pathlib import Path

from data import ROOT, hollow
from harness import US, Report, program

SEQ_LEN, SHARDS, TOKENS, MORE = 4096, 10_000, 10**12, 10**15

START = """
import glob, sys, time
import numpy as np, torch
{imports}
from harness import resident_mb
before, start = resident_mb(), time.perf_counter()
{body}
print([time.perf_counter() - start, resident_mb() - before], flush=True)
"""
OURS = START.format(
    imports="""
import conceptloader as cl
from conceptloader.loader.batch import open as _
from conceptloader.loader.torch import loader as _
""",
    body="""
loader = cl.make_dataloader(sys.argv[1], dp_rank=1, dp_size=16384, micro_batch_size=4, global_batch_size=65536)
next(iter(loader))
""",
)
OLMO = START.format(
    imports="from olmo_core.data import NumpyFSLDataset",
    body="""
dataset = NumpyFSLDataset(*sorted(glob.glob(sys.argv[1] + "/*.bin")), sequence_length=4096, dtype=np.uint16,
                          pad_token_id=0, eos_token_id=1, vocab_size=50000)
dataset[int(np.random.default_rng(0).permutation(np.arange(len(dataset), dtype=np.uint32))[0])]
""",
)
DATATROVE = START.format(
    imports="from datatrove.utils.dataset import DatatroveFolderDataset",
    body="""
dataset = DatatroveFolderDataset(sys.argv[1], 4096, filename_pattern="*.bin", token_size=2)
dataset[len(dataset) // 2]
""",
)


def configuration(name, datasets):
    file = ROOT / f"{name}.yaml"
    file.write_text(json.dumps({"seq_len": SEQ_LEN, "datasets": datasets}))
    return file


report = Report("start")
data = hollow("hollow", SHARDS, TOKENS // SHARDS)
halves = {"web": (0.7, [0, 0.5]), "code": (0.3, [0.5, 1])}
blend = {name: {"path": data, "weight": weight, "split": split} for name, (weight, split) in halves.items()}
files = ROOT / "hollow-files"
if not files.exists():
    files.mkdir()
    for k in range(SHARDS):
        os.link(Path(data) / "hole.bin", files / f"{k:05d}.bin")
large = hollow("hollow-shards", 10 * SHARDS, MORE // SHARDS // 10)
contenders = {
    US: (OURS, configuration("hollow-blend", blend), 5),
    "1e15 tokens in 100,000 shards": (OURS, configuration("hollow-one", {"d": {"path": large}}), 3),
    "OLMo-core, index of all windows": (OLMO, files, 2),
    "datatrove, unshuffled": (DATATROVE, files, 2),
}
# The first run of each warms the page cache.
found = {name: [program(code, str(what)) for _ in range(n + 1)][1:] for name, (code, what, n) in contenders.items()}
for k, (row, unit) in enumerate((("first batch", "s"), ("growth of resident memory", "MB"))):
    report.add(row, unit, {name: [one[k] for one in values] for name, values in found.items()})
report.finish()
