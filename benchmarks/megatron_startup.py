"""From a configuration to the first batch: Megatron's own loader and ours over the same .bin/.idx files.

Files of a fixed number of windows in all, split evenly over 4 or 64 datasets with weights 1, 1/2, 1/3, ...; the token
files are holes. Every measurement is a process of its own, without the time to import. Megatron writes its index files,
as the first start of a run does, or, warm, finds those of an earlier one; ours has none. In place, ours is given the
files alone, as by --data-path, and finds the tables of documents of an earlier start.
"""

import json
import shutil
from pathlib import Path

import numpy as np
from data import ROOT
from harness import US, Report, program

SEQ_LENGTH, DOCUMENT = 64, 500
RUNS = [(10_000_000, 4), (10_000_000, 64), (100_000_000, 4), (100_000_000, 64)]
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
folder, samples, names = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
options = dict(random_seed=1, sequence_length={length}, reset_position_ids=False, reset_attention_mask=False,
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
blend = [folder + "/" + name + "_text" for name in names], [1 / (k + 1) for k in range(len(names))]
config = GPTDatasetConfig(blend=blend, split="1,0,0", path_to_cache=folder + "/cache", **options)
dataset = BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config).build()[0]
dataset.__getitems__ = lambda indices: [dataset[k] for k in indices]
""",
    IN_PLACE: """
blend = [folder + "/" + name + "_text" for name in names], [1 / (k + 1) for k in range(len(names))]
config = GPTDatasetConfig(blend=blend, split="1,0,0", path_to_cache=folder + "/cache", **options)
dataset = MegatronData(None, config, [samples, 0, 0], micro_batch_size=8).datasets()[0]
""",
    US: """
data = MegatronData(folder + "/data.yaml", GPTDatasetConfig(**options), [samples, 0, 0], micro_batch_size=8)
dataset = data.datasets()[0]
""",
}


def write_files(folder, samples, datasets):
    """.bin/.idx files, their adoption, and a YAML of them; what is there already stays."""
    from conceptloader.ingest.adopt.adopt import adopt

    names = [f"set{k:02d}" for k in range(datasets)]
    if (folder / "data.yaml").exists():
        return names
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    documents = -(-(samples * SEQ_LENGTH // datasets + SEQ_LENGTH) // DOCUMENT)
    for k, name in enumerate(names):
        prefix = folder / f"{name}_text"
        if k == 0:
            write_megatron(prefix, documents)
        else:
            for end in (".bin", ".idx"):
                Path(f"{prefix}{end}").hardlink_to(folder / f"{names[0]}_text{end}")
        adopt([prefix], folder / name)
    entries = {name: {"path": name, "weight": 1 / (k + 1)} for k, name in enumerate(names)}
    (folder / "data.yaml").write_text(json.dumps({"datasets": entries}))
    return names


def write_megatron(prefix, documents):
    """Documents of DOCUMENT uint16 tokens: the token file is a hole, its index Megatron's of version 1."""
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(documents * DOCUMENT * 2)
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + np.uint64(1).tobytes() + np.uint8(8).tobytes())
        file.write(np.array([documents, documents + 1], np.uint64).tobytes())
        np.full(documents, DOCUMENT, np.int32).tofile(file)
        (np.arange(documents, dtype=np.int64) * (2 * DOCUMENT)).tofile(file)
        np.arange(documents + 1, dtype=np.int64).tofile(file)


def measure(name, folder, samples, names):
    """(seconds, MB of memory) of one process from its configuration to its first batch. What it caches stays."""
    code = COMMON.replace("{length}", str(SEQ_LENGTH)).replace("{body}", BODIES[STOCK if name == WARM else name])
    seconds, megabytes = program(code, str(folder), str(samples), ",".join(names))
    return seconds, megabytes


def main():
    report = Report("Megatron: configuration to first batch")
    measure(US, (warm := ROOT / "megatron-warm"), 1000, write_files(warm, 1000, 2))  # warm: page cache
    for samples, datasets in RUNS:
        folder = ROOT / f"megatron-{samples}-{datasets}"
        names = write_files(folder, samples, datasets)
        repeats = {STOCK: 1, WARM: 3, IN_PLACE: 4, US: 3}
        shutil.rmtree(folder / "cache", ignore_errors=True)
        found = {name: [measure(name, folder, samples, names) for _ in range(n)] for name, n in repeats.items()}
        found[IN_PLACE].pop(0)  # which has adopted the files
        shutil.rmtree(folder / "cache")
        row = f"{samples:.0e} samples, {datasets} datasets"
        report.add(row, "s", {name: [seconds for seconds, _ in runs] for name, runs in found.items()})
        for name, runs in found.items():
            report.fact(row, f"{name}, memory", max(megabytes for _, megabytes in runs), "MB")
    report.finish()


if __name__ == "__main__":
    main()
