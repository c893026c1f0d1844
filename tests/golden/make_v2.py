"""Forms that are newer than 0.2.0, as 0.3.0 writes them, and what is read from them: python -m tests.golden.make_v2

The archive is made again with each change of a form until the release of 0.3.0, and never after it. test_golden_v2.py
reads all of it.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import conceptloader as cl
from conceptloader.base.hashing import fingerprint
from conceptloader.columns.from_files import add_column
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.packed import Packed
from conceptloader.order.progress.runlog import FILE_NAME, RunLog
from conceptloader.order.progress.state import OrderState
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import audit, open_run, read_record, trace_step
from tests.golden import content, make

ARCHIVE = content.ARCHIVE.with_name("v2.tar.xz")
COLUMNS: dict[str, tuple[str, tuple[int, ...]]] = {
    "ids": ("u2", (3,)), "some_ids": ("u2", (2,)), "logs": ("f2", (2,)), "some_logs": ("f2", ()),
    "reward": ("bf16", ()), "some_rewards": ("bf16", (1, 2)), "label": ("u1", ()), "in_place": ("i4", (2,)),
}  # fmt: skip
RUNS = {"ramps": 24, "live": 64, "mixing": 24, "receipts": 64}  # samples that each has trained, in two launches
BATCH = 8


def written(name: str, count: int) -> tuple[Any, Any]:
    """What is written of a column: an item for each token, exact in every type, and which tokens have one."""
    dtype, shape = COLUMNS[name]
    items = np.arange(count * int(np.prod(shape))).reshape(count, *shape) * 7 % 251
    known = np.arange(count) % 5 > 0 if name.startswith("some_") else np.ones(count, bool)
    return items if dtype[0] in "ui" else (items - 125) / np.float32(8), known


def write_columns(path: Path) -> None:
    count = cl.open_dataset(path).num_tokens
    for name, (dtype, shape) in COLUMNS.items():
        items, known = written(name, count)
        if name == "in_place":
            np.save(path.parent / "in_place.npy", items.astype(dtype))
            os.utime(path.parent / "in_place.npy", (make.MTIME, make.MTIME))
            add_column(path, name, [path.parent / "in_place.npy"], in_place=True)
            continue
        writer = cl.column_writer(path, name, dtype, shape)
        for token in np.flatnonzero(known).tolist():
            writer.put(token, items[token : token + 1], name)
        writer.finish(partial=True)


def columns(root: Path) -> dict[str, Any]:
    with cl.open_dataset(root / "web") as ds:
        found = {}
        for name in COLUMNS:
            values, known = ds.column_values(name, 0, ds.num_tokens)
            column = ds.columns[name]
            if column.dtype == "bf16":
                values = (values.astype("u4") << 16).view("f4")
            found[name] = [column.dtype, column.shape, column.fingerprint, values, known]
        return {name: content.plain(value) for name, value in found.items()}


def shards_of(manifest: Manifest) -> dict[str, Any]:
    """What a manifest says, its columns as digests."""
    table = manifest.shards
    found: dict[str, Any] = {name: getattr(table, name) for name in ("path", "token_checksum", "layout")}
    found |= {name: getattr(table, name) for name in ("starts", "first_documents", "rows")}
    found["foreign"] = [one and asdict(one) for one in table.foreign]
    for kind, files in table.files.items():
        found |= {f"{kind}.{name}": getattr(files, name) for name in ("path", "size", "checksum", "sample")}
    listed = {name: value if isinstance(value, np.ndarray) else [*value] for name, value in found.items()}
    digests = {name: fingerprint(content.plain(value))[:8] for name, value in listed.items()}
    counts = [len(table.path), manifest.num_tokens, manifest.num_documents]
    return {"counts": counts, "fingerprints": manifest.fingerprints, **digests}


def table(root: Path) -> dict[str, Any]:
    """A dataset whose manifest is mapped, and whether the file that is mapped stayed as it was."""
    file = root / "many" / fmt.TABLE
    before = file.stat()
    with cl.open_dataset(root / "many") as ds:
        tokens = ds.tokens(0, ds.num_tokens).tolist()
        mapped = isinstance(ds.manifest.shards.path, Packed)
        kept = [mapped, all(getattr(before, key) == getattr(file.stat(), key) for key in ("st_ino", "st_mtime_ns"))]
        return {**shards_of(ds.manifest), "tokens": fingerprint(tokens), "mapped and kept": kept}


def configurations(root: Path) -> None:
    columns = {"ids": {"at": "labels", "missing": 0}, "some_rewards": {"at": "inputs", "missing": 1}}
    web, books = {"path": "web"}, {"path": "books"}
    plain = {
        "seed": 7, "seq_len": 8, "loader": {"batch_log": True},
        "datasets": {"web": {**web, "weight": 0.7}, "books": {**books, "weight": 0.3}},
    }  # fmt: skip
    ramp = {"start": 16, "weights": {"web": 1, "books": 4}, "ramp": {"samples": 24, "shape": "cosine"}}
    phases = [{"start": 0, "weights": {"web": 3, "books": 1}}, ramp]
    texts = {
        "live": plain, "receipts": plain, "mixing": {**plain, "mixing": {"odm": {}}},
        "ramps": {**plain, "datasets": {"web": web, "books": books}, "phases": phases, "outputs": {"columns": columns}},
    }  # fmt: skip
    for name, text in texts.items():
        (root / f"{name}.yaml").write_text(json.dumps(text, indent=1))


def train(root: Path, name: str, state: Any, ranks: int, stop: int, **more: Any) -> Any:
    """Go on to sample `stop`, logged. Returns: the state there."""
    options = {"dp_size": ranks, "micro_batch_size": 4, "global_batch_size": BATCH, **more}
    loaders = [cl.make_dataloader(root / f"{name}.yaml", dp_rank=rank, **options) for rank in range(ranks)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
        loader.log_start(root / f"run-{name}", loader.steps or 0)
    batches = [iter(loader) for loader in loaders]
    for step in range(loaders[0].consumed_samples // BATCH, stop // BATCH):
        for one in batches * (BATCH // 4 // ranks):
            next(one)
        for loader in loaders:
            if name == "live":
                loader.set_weights({"web": 1 + step, "books": 3}, why=f"step {step} says so")
            if name == "mixing":
                loader.observe({"web": 3 - step / 4, "books": 2.5})
    state = loaders[0].state_dict()
    for loader in loaders:
        loader.close()
    return state


def without_root(root: Path, log: Path) -> None:
    """Make the paths of a run log relative, so that it can be read anywhere."""
    lines = log.read_text().replace(f"{root}/", "").splitlines()
    for place, line in enumerate(lines):
        value = json.loads(line)
        if value["kind"] == "config":
            was, value["hash"] = value["hash"], fingerprint(value["config"])
            lines = [one.replace(was, value["hash"]) for one in lines]
            assert json.loads(lines[place]) == value
    log.write_text("".join(line + "\n" for line in lines))


def resumed(root: Path, name: str) -> Any:
    """What comes next after a saved state."""
    state = json.loads((root / "states" / f"{name}.json").read_text())
    config = {**json.loads((root / f"{name}.yaml").read_text()), "loader": {}}
    loader = cl.make_dataloader(config, micro_batch_size=4, global_batch_size=BATCH)
    loader.load_state_dict(state)
    if loader.mixing is not None:  # the controller goes on, too
        for _ in zip(range(BATCH // 4), loader, strict=False):
            pass
        loader.observe({"web": 1, "books": 2.5})
    saved = OrderState.read(state, name)
    return [loader.consumed_samples, saved.spec.hash, saved.spec.begins, saved.more, content.batches(loader, 4)]


def run(root: Path, name: str) -> dict[str, Any]:
    """What a run log and its batch log say."""
    folder = root / f"run-{name}"
    log, traced = RunLog(folder), open_run(log=folder)
    report = audit(traced, read_record(folder / "conceptloader_batches"), digests=True)
    steps = range(RUNS[name] // BATCH + 1)  # and one that comes
    assert all(log.config(start) for start in log.starts)
    return {
        "starts": [[start.step, start.consumed, start.dp_size, start.end, start.time] for start in log.starts],
        "steps": [[[one.sample, one.dataset, one.epoch, one.window] for one in trace_step(traced, k)] for k in steps],
        "phases": [
            [one.phase.start, one.phase.weights, one.why, one.counts] for one in log.phases(log.spec_at(log.starts[-1]))
        ],
        "audit": [str(report.difference), report.launches, report.steps, report.samples],
    }


PARTS: dict[str, Callable[[Path], Any]] = {
    "columns": columns,
    "table": table,
    "states": lambda root: {name: resumed(root, name) for name in RUNS},
    "runs": lambda root: {name: run(root, name) for name in RUNS},
}


def read(root: Path, part: str) -> Any:
    """A part of it, through JSON. Paths in the run logs are relative: the working directory is root."""
    return json.loads(json.dumps(content.plain(PARTS[part](root))))


def make_all(root: Path) -> None:
    for seed, (name, prefix) in enumerate({"web": "page", "books": "book"}.items()):
        write_dataset(root / name, random_documents(12, seed=seed, prefix=prefix, vocab_size=250), shards=2)
    write_columns(root / "web")
    for name in ("spans", "dense"):
        write_dataset(root / name, random_documents(8, seed=2, vocab_size=250, mean_length=9), shards=2, encoding=name)
    (np.arange(40, dtype="<u2") % 9).tofile(root / "flat.bin")
    os.utime(root / "flat.bin", (make.MTIME, make.MTIME))
    make.adopt([root / "flat.bin"], root / "adopted", kind="flat", dtype="u2", document_end=0)
    parts = [root / name for name in ("spans", "dense", "adopted")] * 180
    cl.concat(parts, root / "many", allow_mixed_tokenizers=True)
    configurations(root)
    (root / "states").mkdir()
    for name, stop in RUNS.items():
        state = train(root, name, None, 2, stop // BATCH // 2 * BATCH)
        state = train(root, name, state, 1, stop, num_samples=2 * stop, last_batch="drop")
        (root / "states" / f"{name}.json").write_text(json.dumps(state))
        without_root(root, root / f"run-{name}" / FILE_NAME)
    os.chdir(root)
    found = {part: read(root, part) for part in PARTS}
    count = cl.open_dataset(root / "web").num_tokens
    for name in COLUMNS:
        items, known = written(name, count)
        items = np.where(known.reshape(-1, *[1] * len(COLUMNS[name][1])), items, 0)
        assert found["columns"][name][3:] == [items.tolist(), known.tolist()], name
    assert found["table"]["mapped and kept"] == [True, True]
    (root / "expected.json").write_text(json.dumps(found, separators=(",", ":")))


if __name__ == "__main__":
    make.pack(make_all, ARCHIVE)
