"""The corpora of the benchmarks, made once under bench-output/data, and the raw C loops."""

import ctypes
import os
import subprocess
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


def dataset(name, documents, shards=1, **options):
    """Path of a dataset of uint16 tokens, made unless it is there. documents: of a shard, for add_document."""
    path = ROOT / name
    if not (path / fmt.MANIFEST).exists():
        tokenizer = cl.writing.Tokenizer(name="random", vocab_size=50_000, eos_id=1)
        given = cl.writing.BuildOptions(token_type="u2", tokenizer=tokenizer, **options)
        build = cl.writing.create_writer(path, given, plan=list(range(shards)))
        for shard in range(shards):
            with build.shard(shard) as writer:
                for document in documents():
                    writer.add_document(**document)
        cl.writing.finalize(path)
    return str(path)


def corpus(name, tokens=TOKENS, span=SPAN, shards=4):
    """Path of a dataset of random tokens: documents of 700 tokens, spans of `span` with 5 concepts each."""
    rng = np.random.default_rng(0)

    def documents():
        for _ in range(-(-tokens // shards // DOCUMENT)):
            ids = rng.integers(0, 50_000, DOCUMENT)
            concepts = rng.integers(0, 1000, (DOCUMENT, CONCEPTS), dtype=np.uint32)
            starts = range(0, DOCUMENT, span) if span else ()
            spans = [(start, min(start + span, DOCUMENT), concepts[start].tobytes()) for start in starts]
            yield {"tokens": ids, "spans": {"concepts": spans} if span else None}

    return dataset(name, documents, shards, tracks={"concepts": cl.writing.TrackOptions()} if span else {})


def raw_library():
    """raw.c, compiled for this machine."""
    target = ROOT / "raw.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-O3", "-march=native", "-shared", "-fPIC", "-o", target, HERE / "raw.c"], check=True)
    library = ctypes.CDLL(str(target))
    for name in ("raw_pread", "raw_pread_widen", "raw_pread_batch", "raw_pread_default"):
        getattr(library, name).restype = ctypes.c_int64
    return library


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


def hollow(name, shards, tokens_per_shard):
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
