"""Batches of 16 windows of 4,096 tokens, shuffled, as a training loop gets them: our loader with its default outputs,
and the peers'; with metadata on spans; and what feeding them adds to a step.

By wall clock and by CPU time. Ours reads in two threads, a DataLoader in its own process or in two workers. Megatron
and numpy give inputs, labels, positions and a loss mask as ours does, datatrove and litdata the tokens alone.
"""

import pickle
import time
from itertools import islice, repeat

import numpy as np
import peers
import torch
from data import CONCEPTS, DOCUMENT, ROOT, TOKENS, corpus, stream_of
from harness import US, Contender, Report
from torch.utils.data import DataLoader, RandomSampler

import conceptloader as cl

SEQ_LEN, BATCH, MANY, FEW = peers.SEQ_LEN, 16, 512, 32
STEP_S, STEP_BATCH, STEPS, ROUNDS = 0.0126, 4, 40, 15
MEMMAP = "numpy: a memmap"

report = Report("loader")
torch.set_num_threads(1)
path = corpus("spans")
stream = stream_of(path)
tokens = np.memmap(stream, np.uint16, "r", shape=TOKENS)
span_starts = np.arange(0, TOKENS, DOCUMENT)
rng = np.random.default_rng(0)


def ours(batch=BATCH, **more):
    halves = {"web": (0.7, [0, 0.5]), "code": (0.3, [0.5, 1])}
    datasets = {name: {"path": path, "weight": weight, "split": split} for name, (weight, split) in halves.items()}
    return cl.make_dataloader({"seq_len": SEQ_LEN, "datasets": datasets, **more}, micro_batch_size=batch)


def torch_loader(dataset, workers=0, batch=BATCH):
    sampler = RandomSampler(dataset, replacement=True, num_samples=1 << 30)
    return iter(DataLoader(dataset, batch, sampler=sampler, num_workers=workers))


def take(batches, number):
    for _ in range(number):
        next(batches)


def taken(name, make, number=MANY):
    """A contender that opens a loader and takes so many batches."""

    def run():
        with make() as loader:
            take(iter(loader), number)

    return Contender(name, run, number * BATCH)


def going(name, batches, number=FEW):
    """One whose loader goes on: what its workers read ahead is the same in each turn."""
    return Contender(name, lambda: take(batches, number), number * BATCH)


def in_numpy(concepts_of=None):
    """Tokens from a memmap; given the concepts of spans, tensors as a padded track has them besides."""
    positions, ones = np.tile(np.arange(SEQ_LEN), (BATCH, 1)), np.ones((BATCH, SEQ_LEN), np.float32)
    while True:
        starts = rng.integers(0, TOKENS // SEQ_LEN - 1, BATCH) * SEQ_LEN
        rows = np.stack([tokens[start : start + SEQ_LEN + 1] for start in starts]).astype(np.int64)
        batch = {"input_ids": rows[:, :-1], "labels": rows[:, 1:], "position_ids": positions.copy()}
        batch["loss_mask"] = ones.copy()
        if concepts_of:
            first = np.searchsorted(span_starts, starts, "right") - 1
            stop = np.searchsorted(span_starts, starts + SEQ_LEN)[:, None]
            which = first[:, None] + np.arange((stop[:, 0] - first).max())
            begins = span_starts[np.minimum(which, len(span_starts) - 1)] - starts[:, None]
            spans = np.stack([begins, begins + DOCUMENT], -1).clip(0, SEQ_LEN)
            index = np.full((BATCH, SEQ_LEN), -1)
            for row, ends in enumerate(spans.tolist()):
                for k, (begin, end) in enumerate(ends):
                    index[row, begin:end] = k
            ids = np.where((which < stop)[..., None], concepts_of(np.minimum(which, stop - 1)), -1)
            batch |= {"spans": spans, "ids": ids, "span_index": index}
        yield {name: torch.from_numpy(array) for name, array in batch.items()}


def stored_concepts():
    """Two functions that give concepts [B, spans, CONCEPTS] of spans: from an array, and from pickled records."""
    made = rng.integers(0, 1000, (len(span_starts), CONCEPTS))
    np.save(ROOT / "concepts.npy", made)
    records = [pickle.dumps({"document": k, "concepts": row}) for k, row in enumerate(made.tolist())]
    (ROOT / "records.pickle").write_bytes(b"".join(records))
    ends = np.cumsum([0, *map(len, records)])
    array, file = np.load(ROOT / "concepts.npy", mmap_mode="r"), open(ROOT / "records.pickle", "rb")  # noqa: SIM115

    def record(span):
        file.seek(ends[span])
        return pickle.loads(file.read(ends[span + 1] - ends[span]))["concepts"]

    return array.__getitem__, lambda which: np.array([[record(span) for span in row] for row in which])


def added():
    """Milliseconds that a step of STEP_S on one core takes longer when it is fed than with a batch that is there."""
    matrix = torch.randn(256, 256)

    def work(products):
        began = time.perf_counter()
        for _ in range(products):
            matrix @ matrix
        return time.perf_counter() - began

    products = round(STEP_S / (min(work(1000) for _ in range(5)) / 1000))
    given = (("datatrove", trove), ("Megatron", gpt))
    peers = {f"{name}, 2 workers": torch_loader(dataset, 2, STEP_BATCH) for name, dataset in given}
    loader = iter(ours(STEP_BATCH))
    sources = {"": repeat(next(loader)), US: loader, **peers}
    times = {name: [] for name in sources}
    for _ in range(ROUNDS):
        for name, batches in sources.items():
            began = time.perf_counter()
            for batch in islice(batches, STEPS):
                next(iter(batch.values())).sum()
                work(products)
            times[name].append(1e3 * (time.perf_counter() - began) / STEPS)
    alone = times.pop("")
    return {name: [one - other for one, other in zip(steps, alone, strict=True)] for name, steps in times.items()}


trove, gpt = peers.datatrove(stream), peers.megatron(tokens)
alone = {"shared_labels": True, "loss_mask": False, "position_ids": "off", "dataset_id": False, "sample_index": False}
contenders = [
    taken(US, ours),
    taken("conceptloader, tokens alone", lambda: ours(outputs=alone)),
    going(MEMMAP, in_numpy(), MANY),
    going("datatrove in a DataLoader", torch_loader(trove)),
    going("litdata", iter(peers.litdata(tokens, BATCH))),
    going("Megatron GPTDataset in a DataLoader", torch_loader(gpt)),
]
workers = [
    going("datatrove, 2 workers", torch_loader(trove, 2), 4 * FEW),
    going("Megatron, 2 workers", torch_loader(gpt, 2)),
]
from_array, from_pickle = stored_concepts()
concepts = [
    taken(US, lambda: ours(tracks={"concepts": {}})),
    taken("conceptloader, without metadata", ours),
    going(f"{MEMMAP}, and searchsorted in arrays of spans", in_numpy(from_array), MANY),
    going("the same with a pickled record a span", in_numpy(from_pickle), MANY),
]
for row, raced, wall in (
    ("a window, wall clock", contenders + workers, True),
    ("a window, CPU time", contenders, False),
    ("a window with metadata, CPU time", concepts, False),
):
    for contender in raced:
        contender.wall = wall
    report.race(row, raced, unit="us", scale=1e6, repeats=5)
report.add("added to a step of 12.6 ms", "ms a step", added())
report.finish()
