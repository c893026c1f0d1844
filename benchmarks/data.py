"""The corpora of the benchmarks, made once under bench-output/data."""

import os
import struct
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
ROOT.mkdir(parents=True, exist_ok=True)
TOKENS, VOCABULARY = 1 << 26, 50_000
DOCUMENT, CONCEPTS = 700, 5  # tokens a document; concepts of the span that each is: 6 spans in 4,096 tokens


def dataset(name, documents, **options):
    """Path of a dataset of uint16 tokens, made unless it is there. documents: for add_document."""
    path = ROOT / name
    if not (path / fmt.MANIFEST).exists():
        tokenizer = cl.writing.Tokenizer(name="random", vocab_size=VOCABULARY, eos_id=1)
        given = cl.writing.BuildOptions(token_type="u2", tokenizer=tokenizer, **options)
        build = cl.writing.create_writer(path, given, plan=[0])
        with build.shard(0) as writer:
            for document in documents:
                writer.add_document(**document)
        cl.writing.finalize(path)
    return str(path)


def corpus(name, tokens=TOKENS):
    """Path of a dataset of random tokens, in documents of 700 tokens that are a span each."""
    rng = np.random.default_rng(0)

    def documents():
        for _ in range(-(-tokens // DOCUMENT)):
            record = rng.integers(0, 1000, CONCEPTS, dtype=np.uint32).tobytes()
            yield {"tokens": rng.integers(0, VOCABULARY, DOCUMENT), "spans": {"concepts": [(0, DOCUMENT, record)]}}

    return dataset(name, documents(), tracks={"concepts": cl.writing.TrackOptions()})


def stream_of(path):
    """The file of all tokens of a dataset."""
    return f"{path}/00000.stream.bin"


def megatron_files(prefix, lengths):
    """Megatron's .bin and .idx of documents with `lengths` uint16 tokens, which are a hole."""
    ends = np.cumsum(lengths, dtype=np.int64)
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(2 * int(ends[-1]))
    with open(f"{prefix}.idx", "wb") as file:
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(lengths), len(lengths) + 1))
        for array in (lengths.astype("<i4"), 2 * (ends - lengths), np.arange(len(lengths) + 1)):
            array.tofile(file)


def hollow(name, shards, tokens_per_shard):
    """Path of a dataset of zeros whose shards are one and the same hole: a manifest of any size, one file."""
    path, size = ROOT / name, 2 * tokens_per_shard
    if (path / fmt.MANIFEST).exists():
        return str(path)
    path.mkdir(exist_ok=True)
    with open(path / "hole.bin", "wb") as file:
        file.truncate(size)
    files = {kind: FileColumn.absent(shards) for kind in fmt.file_kinds([])}
    checksums = [f"{shard:016x}" for shard in range(shards)]
    samples = [sample_checksum(size, lambda _, count: bytes(count))] * shards
    files["stream.bin"] = FileColumn(np.full(shards, size, np.int64), list(checksums), samples, ["hole.bin"] * shards)
    none = np.zeros(shards, np.int64)
    table = ShardTable(
        path=[f"{shard:06d}" for shard in range(shards)], tokens=none + tokens_per_shard, layout=none, offset=none,
        documents=none, token_checksum=checksums, files=files, tracks={},
    )  # fmt: skip
    manifest = Manifest(
        mode="token-stream", created_by="benchmark", tokenizer=None, block_tokens=fmt.BLOCK_TOKENS,
        layouts=(fmt.StreamLayout((("token", "u2"),)),), tracks={}, shards=table,
    )  # fmt: skip
    write_manifest(manifest, str(path))
    return str(path)
