"""From a configuration to the first batch: Megatron's own loader and ours over the same .bin/.idx files.

Files of 1e8 windows in all, split evenly over 4 datasets with weights 1, 1/2, 1/3, 1/4; the token files are holes.
Every measurement is a process of its own, without the time to import. Megatron writes its index files, as the first
start of a run does, or, warm, finds those of an earlier one; ours has none. In place, ours is given the files alone, as
by --data-path, and finds the tables of documents of an earlier start.
"""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
from data import ROOT, megatron_files
from harness import US, Report, program

from conceptloader.ingest.adopt.adopt import adopt

SAMPLES, DATASETS, SEQ_LENGTH, DOCUMENT = 100_000_000, 4, 64, 500
STOCK, WARM, IN_PLACE = "megatron-core", "megatron-core, warm", "in place"

COMMON = """
import gc, json, resource, sys, time
import numpy as np, torch, torch.distributed as dist
from types import SimpleNamespace
from megatron.core import parallel_state
from megatron.core.datasets import helpers
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from conceptloader.integrations.megatron_lm import MegatronData
from conceptloader.loader.batch import open as _
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel()
folder, cache, samples, length, count = *sys.argv[1:3], *map(int, sys.argv[3:])
blend = [f"{{folder}}/set{{k}}_text" for k in range(count)], [1 / (k + 1) for k in range(count)]
cached = dict(blend=blend, split="1,0,0", path_to_cache=cache)
options = dict(random_seed=1, sequence_length=length, reset_position_ids=False, reset_attention_mask=False,
               eod_mask_loss=False, create_attention_mask=False,
               tokenizer=SimpleNamespace(vocab_size=1000, eod=0, unique_identifiers=dict(name="none")))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
gc.collect()  # of what the imports left, which takes 0.3 s in whoever comes next
before, start = peak(), time.perf_counter()
{body}
batch = torch.utils.data.default_collate(dataset.__getitems__(list(range(8))))
print(json.dumps([time.perf_counter() - start, peak() - before]))
"""
BODIES = {
    STOCK: """
config = GPTDatasetConfig(**cached, **options)
dataset = BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config).build()[0]
dataset.__getitems__ = lambda indices: [dataset[k] for k in indices]
""",
    IN_PLACE: """
config = GPTDatasetConfig(**cached, **options)
dataset = MegatronData(None, config, [samples, 0, 0], micro_batch_size=8).datasets()[0]
""",
    US: """
data = MegatronData(folder + "/data.yaml", GPTDatasetConfig(**options), [samples, 0, 0], micro_batch_size=8)
dataset = data.datasets()[0]
""",
}


folder = ROOT / "startup"
if not (folder / "data.yaml").exists():
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    entries = {f"set{k}": {"path": f"set{k}", "weight": 1 / (k + 1)} for k in range(DATASETS)}
    documents = -(-(SAMPLES * SEQ_LENGTH // DATASETS + SEQ_LENGTH) // DOCUMENT)
    for name in entries:
        prefix = folder / f"{name}_text"
        if name == "set0":
            megatron_files(prefix, np.full(documents, DOCUMENT))
        else:
            for end in (".bin", ".idx"):
                Path(f"{prefix}{end}").hardlink_to(folder / f"set0_text{end}")
        adopt([prefix], folder / name)
    (folder / "data.yaml").write_text(json.dumps({"datasets": entries}))
found = {}
with tempfile.TemporaryDirectory(dir=ROOT) as cache:
    arguments = str(folder), cache, *map(str, (SAMPLES, SEQ_LENGTH, DATASETS))
    # The first run of ours warms the page cache; that in place adopts the files.
    for name, repeats, dropped in ((STOCK, 1, 0), (WARM, 3, 0), (IN_PLACE, 4, 1), (US, 4, 1)):
        code = COMMON.format(body=BODIES[STOCK if name == WARM else name])
        found[name] = [program(code, *arguments) for _ in range(repeats)][dropped:]
report = Report("Megatron")
for k, (row, unit) in enumerate((("configuration to first batch", "s"), ("memory", "MB"))):
    report.add(
        f"{row}: 1e8 samples, 4 datasets", unit, {name: [run[k] for run in runs] for name, runs in found.items()}
    )
report.finish()
