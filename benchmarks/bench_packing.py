"""Packs of 4,096 tokens: time for each, ours and grain's.

Documents of log-normal lengths, 1,000 tokens on average. grain packs a stream of documents; ours are read in a
shuffled order, tokens and all.
"""

import itertools

import numpy as np
from data import dataset
from grain import MapDataset, ReadOptions
from grain.experimental import BestFitPackIterDataset, FirstFitPackIterDataset
from harness import US, Contender, Report

import conceptloader as cl
from conceptloader.config import open_blend
from conceptloader.loader.batch.open import open_reader

SEQ_LEN, DOCUMENTS, BATCH, BINS, PACKS = 4096, 40_000, 16, 64, 256
report = Report("packing")
rng = np.random.default_rng(0)
lengths = np.clip(rng.lognormal(np.log(1000) - 0.5, 1, DOCUMENTS), 10, 40_000).astype(np.int64)
path = dataset("packing", ({"tokens": rng.integers(2, 50_000, length)} for length in lengths.tolist()))
documents = cl.open_dataset(path)


def ours(name, **packing):
    reader = open_reader(open_blend({"seq_len": SEQ_LEN, "datasets": {"d": {"path": path}}, **packing}))
    positions = itertools.count(0, BATCH)

    def read():
        for first in itertools.islice(positions, PACKS // BATCH):
            reader.read(np.arange(first, first + BATCH, dtype=np.uint64) % 8192)

    return Contender(name, read, PACKS)


def grain(kind):
    """Our documents as its stream, cut off at the length of a pack."""
    stream = MapDataset.range(DOCUMENTS).map(
        lambda k: {"tokens": documents.tokens(*documents.document_range(int(k)))[:SEQ_LEN]}
    )
    lone = stream.to_iter_dataset(ReadOptions(num_threads=0))  # threads would go on in our turns
    endless = iter(kind(lone, length_struct={"tokens": SEQ_LEN}, num_packing_bins=BINS))
    name = f"grain {kind.__name__.removesuffix('PackIterDataset')}, {BINS} bins"
    return Contender(name, lambda: [next(endless) for _ in range(PACKS)], PACKS)  # it packs all bins at once


packed = ours(US, packing={"bins": BINS}, outputs={"cu_seqlens": True})
contenders = [packed, ours("windows", packing=None), grain(FirstFitPackIterDataset), grain(BestFitPackIterDataset)]
report.race("a pack", contenders, unit="us", scale=1e6, repeats=5)
report.finish()
