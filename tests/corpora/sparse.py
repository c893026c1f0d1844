"""Datasets of any size that take no room: every token file is a hole."""

import os

import numpy as np

from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.shardtable import FileColumn, ShardTable
from conceptloader.storage.durable import write_file
from conceptloader.storage.reads import opened
from conceptloader.storage.sample import open_sample

_CHECKSUM = "0123456789abcdef"  # not that of the files: `verify --full` will say so


def sparse_dataset(path, *, shards, tokens_per_shard):
    """Write a token-stream dataset of zeros, uint16, every shard one document, into a new directory.

    Raises:
        OSError: Where the file system has no sparse files of that size.
    """
    root = os.fspath(path)
    os.makedirs(root, exist_ok=True)
    documents = fmt.documents_size(tokens_per_shard, 1, fmt.BLOCK_TOKENS)
    names = [f"{shard:05d}" for shard in range(shards)]
    for name in names:
        with open(os.path.join(root, f"{name}.documents.bin"), "wb") as file:
            file.write(bytes(8) + tokens_per_shard.to_bytes(8, "little"))
            file.seek(documents - 8)
            file.write((1).to_bytes(8, "little"))
        with open(os.path.join(root, f"{name}.stream.bin"), "wb") as file:
            file.truncate(2 * tokens_per_shard)
    files = {kind: FileColumn.absent(shards) for kind in fmt.file_kinds([])}
    for kind, size in (("stream.bin", 2 * tokens_per_shard), ("documents.bin", documents)):
        first = os.path.join(root, f"{names[0]}.{kind}")
        with opened(first) as descriptor:
            sample = open_sample(descriptor, size, first)
        files[kind] = FileColumn(np.full(shards, size, np.int64), [_CHECKSUM] * shards, [sample] * shards)
    manifest = Manifest(
        mode="token-stream",
        created_by="conceptloader.testing",
        tokenizer=None,
        block_tokens=fmt.BLOCK_TOKENS,
        layouts=(fmt.StreamLayout((("token", "u2"),)),),
        tracks={},
        shards=ShardTable(
            path=names,
            tokens=np.full(shards, tokens_per_shard, np.int64),
            layout=np.zeros(shards, np.int64),
            offset=np.zeros(shards, np.int64),
            documents=np.ones(shards, np.int64),
            token_checksum=[_CHECKSUM] * shards,
            files=files,
            tracks={},
        ),
    )
    write_file(os.path.join(root, fmt.MANIFEST), manifest.dump())
