"""What can be read of the golden files, as plain JSON: by make.py when they were made, by the test ever since."""

import hashlib
import json
import tarfile
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import conceptloader as cl
from conceptloader.blend.exclude import read_excluded
from conceptloader.blend.mask import ALWAYS
from conceptloader.blend.schema import ExcludeConfig
from conceptloader.integrations.nanotron_lm.state import State
from conceptloader.order.progress.runlog import RunLog
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.progress.state import OrderState
from conceptloader.torch.samplers import DistributedSampler, EpochSampler, MixtureSampler
from conceptloader.trace import read_record
from tests.corpora.blended import tokens_of

ARCHIVE = Path(__file__).with_name("v1.tar.xz")
LOADER: dict[str, Any] = {"micro_batch_size": 4, "scheme": "contiguous", "last_batch": "drop"}
STATES = {  # name -> configuration that goes on, whether as a new stage, consumed samples
    "plain": ("plain", False, 12),
    "rich": ("rich", False, 20),
    "stage": ("stage", True, 16),
    "longer": ("longer", False, 12),
    "sequential": ("sequential", False, 8),
}
SAMPLERS: dict[str, Any] = {
    "epoch": lambda: EpochSampler(37, num_replicas=2, rank=1),
    "distributed": lambda: DistributedSampler(range(37), num_replicas=2, rank=1, seed=3),
    "mixture": lambda: MixtureSampler([0, 10, 25, 60], [1, 2, 3], num_replicas=2, rank=1, seed=3),
}
CONTEXT = 9


def unpack(archive: Path, directory: Path) -> Path:
    """The archive's files, with their times: adopted files are known by them."""
    with tarfile.open(archive) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # absent before Python 3.11.4
        files.extractall(directory)
    return directory / archive.name.removesuffix(".tar.xz")


def plain(value: Any) -> Any:
    """JSON of an array, a record or anything in one."""
    if isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
        return value.tolist()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def dataset(path: Path, verify_files: bool = True) -> dict[str, Any]:
    """Tokens, spans, fields, documents, ids, fingerprints."""
    with cl.open_dataset(path, allow_pickle=True, verify_files=verify_files) as ds:
        tracks = sorted(ds.tracks)
        whole = ds.read(0, ds.num_tokens, tracks, documents=True)
        samples = ds.documents() if ds.mode == "document" else ds.windows(CONTEXT)
        ids = [ds.document_id(document) for document in range(ds.num_documents)]
        return plain(
            {
                "mode": ds.mode,
                "tokenizer": None if ds.tokenizer is None else [ds.tokenizer.name, ds.tokenizer.vocab_size],
                "tokens": whole["tokens"],
                "fields": {name: whole[name] for name in ds.field_names},
                "documents": [ds.document_range(document) for document in range(ds.num_documents)],
                "ids": ids,
                "found": [ds.find_document(name) for name in ids if name],
                "tracks": {
                    name: {
                        "start": whole[name].start,
                        "end": whole[name].end,
                        "records": whole[name].decode(),
                        "vocabulary": ds.vocabulary(name),
                        "most_spans": ds.tracks[name].spans_in(CONTEXT),
                        "max_items": ds.tracks[name].max_items,
                    }
                    for name in tracks
                },
                "samples": [[len(samples)], *(samples[k]["tokens"] for k in (0, len(samples) // 2, len(samples) - 1))],
                "stream_fingerprint": ds.stream_fingerprint,
                "tracks_fingerprint": ds.tracks_fingerprint,
            }
        )


def batches(loader: Any, count: int) -> list[Any]:
    """The next `count` batches; large arrays as their digest."""
    with loader:
        found = [plain(dict(batch)) for batch in islice(iter(loader), count)]
    keep = ("sample_index", "dataset_id", "input_ids")
    for batch in found:
        for name in set(batch) - set(keep):
            batch[name] = hashlib.sha256(json.dumps(batch[name]).encode()).hexdigest()[:16]
    return found


def resumed(root: Path, name: str, state: Any) -> list[Any]:
    """What comes next after a saved loader state."""
    config, stage, consumed = STATES[name]
    loader = cl.make_dataloader(root / f"{config}.yaml", **LOADER)
    loader.load_state_dict(state, new_stage=stage and not OrderState.read(state, name).spec.base)
    assert loader.consumed_samples == consumed
    return batches(loader, 3)


def sampler(name: str, saved: Any) -> list[int]:
    """The rest of the epoch that a saved sampler was in."""
    made = SAMPLERS[name]()
    made.load_state_dict(saved["sampler"])
    iterator = iter(made)
    iterator.load_state_dict(saved["iterator"])
    return list(iterator)


def order(spec: OrderSpec) -> dict[str, Any]:
    """An order spec and some samples of it."""
    built = spec.build() if spec.order != "megatron" else None
    places = (0, 1, 7, 8, 9, 1000, 10**9)
    samples = [list(map(int, built.sample(place))) for place in places] if built is not None else []
    return {"hash": spec.hash, "members": list(spec.members), "base": spec.base, "samples": samples}


def saved_specs(root: Path) -> dict[str, Any]:
    """Everything that frameworks and people keep an order spec in."""
    nanotron = State.read(root / "nanotron" / "12")
    assert nanotron is not None
    folder = root / "megatron" / "iter_0000003" / "mp_rank_00"
    args = torch.load(folder / "model_optim_rng.pt", weights_only=False)["args"]
    own_loop = torch.load(folder / "train_dataloader_dprank000.pt")["dataloader_state_dict"]
    own = OrderState.read(own_loop, "own loop")
    found = {
        "nanotron": [order(nanotron.order.spec), nanotron.consumed, nanotron.stage, nanotron.stage_start],
        "megatron": [order(OrderState.read(args.conceptloader, "arguments").spec), args.consumed_train_samples],
        "megatron-loop": [order(own.spec), own.consumed],
    }
    for name in ("spec-megatron", "spec-spliced", "spec-documents"):
        found[name] = [order(OrderSpec.from_dict(json.loads((root / "states" / f"{name}.json").read_text())))]
    blend = cl.open_blend(cl.load_config(root / "plain.yaml")).resume(nanotron.order.spec, nanotron.consumed)
    found["next"] = [tokens_of(blend, index) for index in range(12, 16)]
    spec = json.loads((root / "states" / "spec-documents.json").read_text())
    blend = cl.open_blend(cl.load_config(root / "documents.yaml")).resume(spec, 4)
    found["next-documents"] = [tokens_of(blend, index) for index in range(4, 9)]
    return found


def run(root: Path) -> dict[str, Any]:
    """The run log: where steps and samples are; the record."""
    log = RunLog(root / "run")
    return {
        "starts": [[start.step, start.consumed, start.dp_size, start.time] for start in log.starts],
        "steps": [log.history.range_of(step) for step in (0, 4, 5, 6, 20)],
        "places": [[[place.step, place.dp_rank] for place in log.history.places(sample)] for sample in (3, 21, 50)],
        "spec": order(log.spec(log.starts[-1])),
        "record": [
            [launch.number, [[line.step, line.dp_rank, line.samples, line.checksums] for line in launch.lines]]
            for launch in read_record(root / "run" / "record")
        ],
    }


def datasets(root: Path) -> list[str]:
    return sorted(file.parent.name for file in root.glob("*/manifest.json"))


def everything(root: Path) -> Any:
    """All of it, through JSON."""
    state = {name: json.loads((root / "states" / f"{name}.json").read_text()) for name in STATES}
    entry = ExcludeConfig(dataset="dense", token_file=str(root / "bad.txt"))
    excluded, _ = read_excluded([entry], {"dense": SimpleNamespace(num_tokens=60)}, None)
    found = {
        "datasets": {name: dataset(root / name) for name in datasets(root)},
        "resumed": {name: resumed(root, name, state[name]) for name in STATES},
        "samplers": {
            name: sampler(name, json.loads((root / "states" / f"sampler-{name}.json").read_text())) for name in SAMPLERS
        },
        "specs": saved_specs(root),
        "run": run(root),
        "quarantine": {name: one.always.ranges(ALWAYS) for name, one in excluded.items()},
    }
    return json.loads(json.dumps(found))
