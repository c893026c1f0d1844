"""The corpora of the benchmarks, made once under bench-output/data, and the raw C loops."""

import ctypes
import os
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np

import conceptloader as cl
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.shardtable import FileColumn, ShardTable
from conceptloader.format.write.finalize import write_manifest
from conceptloader.storage.sample import sample_checksum

HERE = Path(__file__).parent
ROOT = Path(os.environ.get("BENCH_DATA", HERE.parent / "bench-output" / "data"))
TOKENS = 1 << 26
# Outputs of ours that are what the peers' readers give: the tokens of a window, once.
TOKENS_ONLY = {
    "shared_labels": True, "loss_mask": False, "position_ids": "off", "dataset_id": False, "sample_index": False,
}  # fmt: skip
DOCUMENT, SPAN, CONCEPTS = 700, 700, 5  # tokens a document, tokens a span, concepts a span: 6 spans in 4,096 tokens


def corpus(
    name: str, token_type: str = "u2", tokens: int = TOKENS, span: int = SPAN, encoding: str = "spans", shards: int = 4
) -> str:
    """Path of a dataset of random tokens: documents of 700 tokens, spans of `span` with 5 concepts each."""
    path = ROOT / name
    if (path / "manifest.json").exists():
        return str(path)
    options = cl.writing.BuildOptions(
        token_type=token_type,
        tokenizer=cl.writing.Tokenizer(name="random", vocab_size=50_000),
        tracks={"concepts": cl.writing.TrackOptions(encoding=encoding)} if span else {},
    )
    build = cl.writing.create_writer(path, options, plan=list(range(shards)))
    rng = np.random.default_rng(0)
    for shard in range(shards):
        with build.shard(shard) as writer:
            while writer.tokens < tokens // shards:
                ids = rng.integers(0, 50_000, DOCUMENT)
                concepts = rng.integers(0, 1000, (DOCUMENT, CONCEPTS), dtype=np.uint32)
                spans = (
                    [(a, min(a + span, DOCUMENT), concepts[a].tobytes()) for a in range(0, DOCUMENT, span)]
                    if span
                    else []
                )
                writer.add_document(ids, spans={"concepts": spans} if span else None)
    cl.writing.finalize(path)
    return str(path)


KINDS = {"content": (12_786, 5.68), "tone": (587, 6.90), "document": (31, 1.52), "entity": (3_386, 0.63)}


def annotated(tokens: int = 1 << 22) -> str:
    """Path of a dataset with the statistics of guidelabs/fineweb-atlas, as `conceptloader import` makes them:
    documents of 6.4 chunks of 107 tokens, four kinds of labels in one track, 3 of 100 chunks not annotated."""
    path = ROOT / "annotated"
    if (path / "manifest.json").exists():
        return str(path)
    options = cl.writing.BuildOptions(
        token_type="u4",
        tokenizer=cl.writing.Tokenizer(name="random", vocab_size=100_000),
        tracks={"concepts": cl.writing.TrackOptions(parameters={"ids": "u2"})},
    )
    build, rng = cl.writing.create_writer(path, options, plan=[0]), np.random.default_rng(0)
    with build.shard(0) as writer:
        while writer.tokens < tokens:
            borders = np.cumsum([0, *(1 + rng.geometric(1 / 106, 1 + rng.poisson(5.42)))])
            spans = []
            for start, end in pairwise(borders):
                first, found = 0, []
                for size, labels in KINDS.values():  # Zipf-like, each once
                    ranks = size ** rng.random(4 * rng.poisson(labels) + 1)  # more than are wanted
                    kept = list(dict.fromkeys(ranks.astype(int).tolist()))[: len(ranks) // 4]
                    found += sorted(first + rank - 1 for rank in kept)
                    first += size
                if rng.random() > 0.032:
                    spans.append((int(start), int(end), np.array(found, "<u2").tobytes()))
            writer.add_document(rng.integers(0, 100_000, borders[-1]), spans={"concepts": spans})
    cl.writing.finalize(path)
    return str(path)


def raw_library() -> ctypes.CDLL:
    """raw.c, compiled for this machine."""
    target = ROOT / "raw.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-O3", "-march=native", "-shared", "-fPIC", "-o", target, HERE / "raw.c"], check=True)
    library = ctypes.CDLL(str(target))
    for name in ("raw_pread", "raw_pread_widen", "raw_pread_batch", "raw_pread_default"):
        getattr(library, name).restype = ctypes.c_int64
    return library


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def drop_from_cache(path: str) -> None:
    """Ask the kernel to forget a file's pages, so that the next read comes from the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def hollow(name: str, shards: int, tokens_per_shard: int) -> str:
    """Path of a dataset of zeros whose shards are one and the same hole: a manifest of any size, one file."""
    path, size = ROOT / name, 2 * tokens_per_shard
    if (path / fmt.MANIFEST).exists():
        return str(path)
    path.mkdir(parents=True, exist_ok=True)
    with open(path / "hole.bin", "wb") as file:
        file.truncate(size)
    files = {kind: FileColumn.absent(shards) for kind in fmt.file_kinds([])}
    checksums = [f"{shard:016x}" for shard in range(shards)]
    samples = [sample_checksum(size, lambda _, count: bytes(count))] * shards
    files["stream.bin"] = FileColumn(np.full(shards, size, np.int64), list(checksums), samples, ["hole.bin"] * shards)
    manifest = Manifest(
        mode="token-stream", created_by="benchmark", tokenizer=None, block_tokens=fmt.BLOCK_TOKENS,
        layouts=(fmt.StreamLayout((("token", "u2"),)),), tracks={},
        shards=ShardTable(
            path=[f"{shard:06d}" for shard in range(shards)], tokens=np.full(shards, tokens_per_shard, np.int64),
            layout=np.zeros(shards, np.int64), offset=np.zeros(shards, np.int64),
            documents=np.zeros(shards, np.int64), token_checksum=checksums, files=files, tracks={},
        ),
    )  # fmt: skip
    write_manifest(manifest, str(path))
    return str(path)
