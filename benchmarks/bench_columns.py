"""A window of 4,096 tokens with values for each: 8 fields beside the tokens, or a column in files of its own."""

import os

import numpy as np
from data import dataset
from harness import US, Contender, Report

import conceptloader as cl
from conceptloader.loader.batch.open import open_reader

SEQ_LEN, BATCH, BATCHES, TOKENS = 4096, 16, 16, 1 << 20
FIELDS = [f"field{k}" for k in range(8)]

report = Report("columns")
rng = np.random.default_rng(0)
samples = rng.integers(0, TOKENS // SEQ_LEN - 1, BATCH * BATCHES).astype(np.uint64)


def corpus(name, fields):
    def documents():
        for _ in range(TOKENS >> 10):
            values = {name: rng.integers(0, 1 << 16, 1024) for name in fields}
            yield {"tokens": rng.integers(0, 50_000, 1024), "fields": values}

    return dataset(name, documents, fields=fields)


def with_column():
    """Path of a dataset with a column of 8 numbers for each token: what the fields hold."""
    path = corpus("columns-wide", {})
    if not os.path.exists(f"{path}/eight.column.json"):
        loader = cl.batches({"seq_len": SEQ_LEN, "datasets": {"a": {"path": path}}}, micro_batch_size=BATCH)
        with cl.column_writer(path, "eight", "u2", 8, loader=loader) as writer:
            for batch, _ in zip(loader, range(TOKENS // SEQ_LEN // BATCH), strict=False):
                writer.write(batch, rng.integers(0, 1 << 16, (BATCH, SEQ_LEN, 8), dtype=np.uint16))
            writer.finish(partial=True)
    return path


def ours(path, outputs):
    config = {"seq_len": SEQ_LEN, "datasets": {"a": {"path": path}}, "outputs": outputs}
    reader = open_reader(cl.open_blend(cl.load_config(config)))

    def read():
        for k in range(0, len(samples), BATCH):
            reader.read(samples[k : k + BATCH])

    return read


plain, rich, wide = corpus("columns-plain", {}), corpus("columns-fields", dict.fromkeys(FIELDS, "u2")), with_column()
fields = {"fields": dict.fromkeys(FIELDS, "labels")}
column = {"columns": {"eight": {"at": "labels", "dtype": "stored", "missing": 0}}}
report.race(
    "warm, batches of 16, default outputs",
    [
        Contender(US, ours(plain, {}), len(samples)),
        Contender("conceptloader, tokens of a dataset with 8 u2 fields", ours(rich, {}), len(samples)),
        Contender("conceptloader, 8 u2 fields", ours(rich, fields), len(samples)),
        Contender("conceptloader, tokens of a dataset with columns", ours(wide, {}), len(samples)),
        Contender("conceptloader, a column u2[8]", ours(wide, column), len(samples)),
    ],
    unit="us",
    scale=1e6,
)
report.finish()
