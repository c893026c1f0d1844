"""Files of every kind as they are written, and what is read from them: python -m tests.golden.make

The archive is made again with each change of a file's form until the first release, and never after it: then it holds
what users have on their disks, and a later form gets an archive of its own. test_golden_files.py reads all of it.
"""

import json
import os
import shutil
import tarfile
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import conceptloader as cl
from conceptloader.format.write.build import Build
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.build.builder import IngestOptions, build_dataset
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.inputs import find_sources
from conceptloader.ingest.records.tokenizer import load_tokenizer
from conceptloader.integrations.nanotron_lm.state import State
from conceptloader.order.progress.resume import resume
from conceptloader.order.progress.runlog import RunStart
from conceptloader.order.progress.spec import Member, OrderSpec
from conceptloader.order.progress.state import OrderState
from conceptloader.trace import BatchRecorder
from tests.golden import content

MTIME = 1_700_000_000  # tar keeps whole seconds; adopted files are known by their time
RECORDS = {
    "concepts": lambda k: [(k * 7 + j) % 12 for j in range(k % 4)],
    "numpy": lambda k: np.arange(k % 5, dtype=np.float32),
    "msgpack": lambda k: {"k": k, "list": [1.5, None, "x" * (k % 9)]},
    "json": lambda k: {"k": k, "text": "ü" * (k % 4)},
    "bytes": lambda k: bytes(range(k % 6)),
    "pickle": lambda k: (k, "x"),
}
DENSE = {"path": "native-dense", "weight": 0.5}
WORDS = ["red", "green", "blue", "größer"]


def options(mode: str, encoding: str, codecs: list[str]) -> cl.writing.BuildOptions:
    tracks = {
        codec: cl.writing.TrackOptions(
            codec=codec,
            encoding=encoding,
            parameters={"dtype": "f4"} if codec == "numpy" else {},
            vocabulary=[f"concept {k}" for k in range(12)] if codec == "concepts" else None,
        )
        for codec in codecs
    }
    tokenizer = cl.writing.Tokenizer(name="golden", vocab_size=300, eos_id=0)
    fields = {"loss_mask": "u1"}
    return cl.writing.BuildOptions(mode=mode, tokenizer=tokenizer, tracks=tracks, fields=fields, block_tokens=8)


def write_shard(build: Build, shard: int) -> None:
    with build.shard(shard) as writer:
        for number in range(shard * 5, shard * 5 + 5):
            size = number * 5 % 17
            spans = {
                codec: [(a, a + 3, RECORDS[codec](number + a)) for a in range(0, size - 3, 4)]
                for codec in build.options.tracks
            }
            tokens = [1 + (number * 31 + t * 7) % 299 for t in range(size)]
            tokens[-1:] = [0] if tokens else []
            writer.add_document(tokens, spans, f"doc-{number}", {"loss_mask": [t % 3 > 0 for t in range(size)]})


def native(path: Path, mode: str, encoding: str, codecs: list[str]) -> None:
    build = cl.writing.create_writer(path, options(mode, encoding, codecs), inputs=["golden"], plan=[0, 1])
    for shard in range(2):
        write_shard(build, shard)
    cl.writing.finalize(path)


def corpus(path: Path, count: int) -> None:
    """Text with spans in characters."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            word = WORDS[number % 4]
            text = f"Paint {number} is {word}."
            start = text.index(word)
            spans = [{"start": start, "end": start + len(word), "concepts": ["colour", word]}]
            file.write(json.dumps({"id": f"tin-{number}", "text": text, "spans": spans}) + "\n")
    os.utime(path, (MTIME, MTIME))


def ingest_options() -> IngestOptions:
    return IngestOptions(
        columns=Columns(tracks={"concepts": "spans"}),
        tokenizer=load_tokenizer("bytes"),
        vocabularies={"concepts": ["colour", *WORDS]},
        shard_input_bytes=2000,
    )


def adopted(root: Path) -> None:
    """Token files as Megatron, datatrove and others write them, and datasets of them."""
    source = root / "foreign"
    source.mkdir()
    tokens = (np.arange(200) * 7 % 250).astype("<u2")
    tokens[19::20] = 0
    lengths = np.full(10, 20, "<i4")
    index = b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + b"\x08" + np.array([10, 11], "<u8").tobytes()
    index += lengths.tobytes() + (np.arange(10) * 40).astype("<i8").tobytes() + np.arange(11).astype("<i8").tobytes()
    (source / "megatron.bin").write_bytes(tokens.tobytes())
    (source / "megatron.idx").write_bytes(index)
    (source / "00000.ds").write_bytes(tokens.tobytes())
    (source / "00000.ds.index").write_bytes(np.arange(20, 201, 20).astype("<u8").tobytes())
    (source / "00000.ds.metadata").write_text("golden|2\n200\n200 T")
    tokens.tofile(source / "flat.bin")
    np.save(source / "flat.npy", tokens)
    for file in source.iterdir():
        os.utime(file, (MTIME, MTIME))
    tokenizer = cl.writing.Tokenizer(name="golden", vocab_size=300, eos_id=0)
    adopt([source / "megatron"], root / "adopted-megatron", kind="megatron", tokenizer=tokenizer)
    adopt([source / "00000.ds"], root / "adopted-datatrove", kind="datatrove")
    adopt([source / "flat.bin"], root / "adopted-flat", kind="flat", dtype="u2", document_end=0)
    adopt([source / "flat.npy"], root / "adopted-npy", kind="flat", document_end=0)
    shutil.copytree(root / "adopted-flat", root / "adopted-verified")
    assert cl.verify(root / "adopted-verified", full=True) == []  # writes its checksums.json


def annotated(root: Path) -> None:
    rows = [{"document": d, "start": d % 3, "end": d % 3 + 4, "concepts": [d % 4, 4]} for d in (2, 3, 5, 6, 9)]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = AnnotateOptions(track="topics", vocabulary=[f"topic {k}" for k in range(5)], span_unit="token")
    annotate(root / "adopted-megatron", [root / "rows.jsonl"], root / "annotated-adopted", wanted)
    annotate(root / "native-spans", [root / "rows.jsonl"], root / "annotated-native", wanted)
    (root / "rows.jsonl").unlink()


def builds_in_progress(root: Path) -> None:
    """Killed after their first shard: of the Python interface and of the command line."""
    build = cl.writing.create_writer(
        root / "build-api", options("stream-with-metadata", "spans", ["concepts", "json"]), plan=[0, 1]
    )
    write_shard(build, 0)
    (root / "build-api" / ".00001.stream.bin.0123456789abcdef.tmp").write_bytes(b"cut off")
    corpus(root / "corpus.jsonl", 40)
    sources = find_sources([root / "corpus.jsonl"])
    shards = build_dataset(sources, root / "native-text", ingest_options()).shards
    assert shards > 1
    shutil.copytree(root / "native-text", root / "build-text")
    (root / "build-text" / "manifest.json").unlink()
    for file in (root / "build-text").glob(f"{shards - 1:05d}.*"):
        file.unlink()


def configurations(root: Path) -> None:
    (root / "bad.txt").write_text("# a disk's bad sectors\n10 14\n\n40 44  # and some more\n")
    outputs = {"position_ids": "document", "document_ids": True, "loss_on_eos": False}
    plain = {
        "seed": 7, "seq_len": 8, "outputs": outputs,
        "datasets": {
            "spans": {"path": "native-spans", "weight": 0.7},
            "foreign": {"path": "adopted-megatron", "weight": 0.3},
        },
    }  # fmt: skip
    rich = {
        **plain, "block": 16, "tracks": {"concepts": {}},
        "datasets": {"dense": {"path": "native-dense"}, "spans": {"path": "native-spans", "split": [0, 0.9]}},
        "phases": [{"start": 0, "weights": {"dense": 1, "spans": 2}}, {"start": 30, "weights": {"spans": 1}}],
        "skip": [{"at": 12, "count": 5}],
        "quarantine": [{"dataset": "dense", "file": "bad.txt"}],
    }  # fmt: skip
    texts = {
        "plain": plain, "rich": rich, "stage": {**plain, "datasets": {**plain["datasets"], "dense": DENSE}},
        "longer": {**plain, "seq_len": 16, "on_seq_len_change": "restart"},
        "sequential": {
            "seq_len": 8, "order": "sequential",
            "datasets": {"spans": {"path": "native-spans"}, "flat": {"path": "adopted-flat"}},
        },
        "documents": {"datasets": {"chat": {"path": "native-chat"}}},
    }  # fmt: skip
    for name, text in texts.items():
        (root / f"{name}.yaml").write_text(json.dumps(text, indent=1))  # YAML too


def loader(root: Path, config: str, **more: Any) -> Any:
    return cl.make_dataloader(root / f"{config}.yaml", **content.LOADER, **more)


def states(root: Path) -> None:
    """The loader's state in each of its forms; `names` of content.STATES."""
    (root / "states").mkdir()
    made: dict[str, Any] = {}
    for name, (config, _, consumed) in content.STATES.items():
        before = loader(root, "plain" if name in ("stage", "longer") else config)
        with before:
            for _ in zip(range((consumed - (4 if name in ("stage", "longer") else 0)) // 4), before, strict=False):
                pass
            made[name] = before.state_dict()
        if name in ("stage", "longer"):  # the second part of a run, whose configuration is another one
            with loader(root, config) as after:
                after.load_state_dict(made[name], new_stage=name == "stage")
                next(iter(after))
                made[name] = after.state_dict()
        assert OrderState.read(made[name], name).consumed == consumed, name
        (root / "states" / f"{name}.json").write_text(json.dumps(made[name]))
        torch.save({"loader": made[name], "step": 3}, root / "states" / f"{name}.pt")
    samplers = {name: make() for name, make in content.SAMPLERS.items()}
    samplers["mixture"].update_weights([1, 0, 3])
    for name, sampler in samplers.items():
        sampler.set_epoch(2)
        iterator = iter(sampler)
        for _ in range(3):
            next(iterator)
        saved = {"sampler": sampler.state_dict(), "iterator": iterator.state_dict()}
        (root / "states" / f"sampler-{name}.json").write_text(json.dumps(saved))


def frameworks(root: Path) -> None:
    """nanotron's file in a checkpoint; Megatron's arguments in one, and its data loader's state beside it."""
    spec = cl.open_blend(cl.load_config(root / "plain.yaml")).spec
    folder = root / "nanotron" / "12"
    folder.mkdir(parents=True)
    State(spec=spec, consumed=12, stage="second", stage_start=8).write(folder)
    folder = root / "megatron" / "iter_0000003" / "mp_rank_00"
    folder.mkdir(parents=True)
    args = Namespace(conceptloader=OrderState(spec=spec).leaf(), consumed_train_samples=12, iteration=3, seq_length=8)
    torch.save({"args": args, "iteration": 3}, folder / "model_optim_rng.pt")
    own_loop = {"dataloader_state_dict": OrderState(spec=spec, consumed=12).leaf()}
    torch.save(own_loop, folder / "train_dataloader_dprank000.pt")
    member = Member(dataset="web", seq_len=8, windows=100, stream_fingerprint="ab" * 16, token_range=(0, 801))
    identity = {"megatron": {"datasets": ["0" * 32], "samples": 100}}
    taken_over = OrderSpec(seed=7, block=1, members={"web": member}, order="megatron", extra=identity)
    (root / "states" / "spec-megatron.json").write_text(json.dumps(taken_over.to_dict()))
    documents = cl.open_blend(cl.load_config(root / "documents.yaml")).spec
    (root / "states" / "spec-documents.json").write_text(json.dumps(documents.to_dict()))
    longer = cl.open_blend(cl.load_config(root / "longer.yaml")).spec
    spliced = resume(spec, longer, 8, on_seq_len_change="restart")
    (root / "states" / "spec-spliced.json").write_text(json.dumps(spliced.to_dict()))


def runs(root: Path) -> None:
    """A run log of three starts, and what two ranks of one of them recorded."""
    from conceptloader.order.progress.runlog import RunLog

    spec = cl.open_blend(cl.load_config(root / "plain.yaml")).spec
    folder = root / "run"
    folder.mkdir()
    times = (f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2, 3))
    for (step, consumed, dp_size), time in zip([(0, 0, 2), (6, 24, 1), (5, 20, 2)], times, strict=True):
        start = RunStart(
            step=step, consumed=consumed, batch=[[0, 4], [40, 8]], micro_batch_size=2, dp_size=dp_size, seq_len=8,
            spec=spec.hash, time=time,
        )  # fmt: skip
        RunLog(folder).append(start, spec)
    for rank in range(2):
        recorder = BatchRecorder(folder / "record", 0, rank, start)
        of_rank = cl.make_dataloader(root / "plain.yaml", dp_rank=rank, dp_size=2, micro_batch_size=2)
        with of_rank:
            for step, batch in zip(range(3), of_rank, strict=False):
                recorder.write(step, 0, {name: value.numpy() for name, value in batch.items()})
        recorder.close()
    with (folder / "conceptloader_runs.jsonl").open("ab") as file:
        file.write(b'{"kind":"start","log_ver')  # the line that a kill cut off


def make(root: Path) -> None:
    codecs = list(RECORDS)
    native(root / "native-spans", "stream-with-metadata", "spans", codecs)
    native(root / "native-dense", "stream-with-metadata", "dense", codecs)
    native(root / "native-chat", "document", "spans", ["concepts", "json"])
    native(root / "native-chat-dense", "document", "dense", ["concepts"])
    native(root / "native-tokens", "token-stream", "auto", [])
    adopted(root)
    annotated(root)
    cl.concat([root / "native-spans", root / "native-dense"], root / "joined")
    cl.concat([root / "annotated-adopted", root / "adopted-flat"], root / "joined-adopted", allow_mixed_tokenizers=True)
    builds_in_progress(root)
    configurations(root)
    states(root)
    frameworks(root)
    runs(root)
    (root / "expected.json").write_text(json.dumps(content.everything(root), separators=(",", ":")))


def pack(make: Callable[[Path], None], target: Path) -> None:
    """Make files in a folder, and an archive of it."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / target.name.removesuffix(".tar.xz")
        root.mkdir()
        make(root)

        def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = MTIME + (entry.name.endswith("build.json") and 1)
            return entry

        with tarfile.open(target, "w:xz", preset=9, format=tarfile.PAX_FORMAT) as archive:
            archive.add(root, root.name, filter=plain)


if __name__ == "__main__":
    pack(make, content.ARCHIVE)
