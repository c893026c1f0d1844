"""Samples of 4,097 tokens a second in each one's own loader, batch 16: shuffle, blend and collation included."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import peers
import torch
from data import TOKENS, TOKENS_ONLY, corpus, pointer, raw_library
from harness import US, Contender, Report
from torch.utils.data import DataLoader, RandomSampler

import conceptloader as cl

SEQ_LEN, BATCH, BATCHES, THREADS = 4096, 16, 512, 2

report = Report("loader")
torch.set_num_threads(1)
library = raw_library()
path = corpus("bare", span=0, shards=1)
stream = f"{path}/00000.stream.bin"
descriptor = os.open(stream, os.O_RDONLY)
total = (TOKENS - 1) // SEQ_LEN


def ours(outputs, batches=BATCHES, batch=BATCH):
    config = {
        "seq_len": SEQ_LEN,
        "datasets": {
            "web": {"path": path, "weight": 0.7, "split": [0, 0.5]},
            "code": {"path": path, "weight": 0.3, "split": [0.5, 1]},
        },
        "outputs": outputs,
        "loader": {"num_threads": THREADS},
    }
    with cl.make_dataloader(config, micro_batch_size=batch) as loader:
        for _, _batch in zip(range(batches), loader, strict=False):
            pass


def raw_threads(blocks, batch=BATCH, default=False):
    """As many threads as ours, each reading into `blocks` buffers of its own in turn; nothing is handed over. default:
    into four arrays each, as a batch with default outputs has them."""
    offsets = np.random.default_rng(0).integers(0, total, (BATCHES, batch)).astype(np.uint64) * np.uint64(2 * SEQ_LEN)

    def work(thread):
        out = np.empty((blocks, batch, SEQ_LEN + 1), np.int64)
        more = np.empty((3, blocks, batch, SEQ_LEN), np.int64) if default else out
        for k, row in enumerate(offsets[thread::THREADS]):
            to = pointer(out[k % blocks])
            if default:
                arrays = (pointer(array[k % blocks]) for array in more)
                library.raw_pread_default(descriptor, pointer(row), batch, SEQ_LEN + 1, to, *arrays)
            else:
                library.raw_pread_widen(descriptor, pointer(row), batch, SEQ_LEN + 1, to)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))


def torch_loader(dataset, batches):
    sampler = RandomSampler(dataset, num_samples=batches * BATCH)
    for _ in DataLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=0):
        pass


def litdata_loader(batches):
    from litdata import StreamingDataLoader

    loader = StreamingDataLoader(peers.litdata(np.fromfile(stream, np.uint16)), batch_size=BATCH, num_workers=0)
    for _, _batch in zip(range(batches), loader, strict=False):
        pass


trove = peers.datatrove(stream)
report.race(
    "batch 16, one process",
    [
        Contender(US, lambda: ours(TOKENS_ONLY), BATCHES * BATCH, wall=True),
        Contender("conceptloader, default outputs", lambda: ours({}), BATCHES * BATCH, wall=True),
        Contender("C: 2 threads, a buffer each", lambda: raw_threads(1), BATCHES * BATCH, wall=True),
        Contender("C: 2 threads, 4 buffers each", lambda: raw_threads(4), BATCHES * BATCH, wall=True),
        Contender("C: the same, default outputs", lambda: raw_threads(4, default=True), BATCHES * BATCH, wall=True),
        Contender("datatrove in a torch DataLoader", lambda: torch_loader(trove, 32), 32 * BATCH, wall=True),
        Contender("litdata", lambda: litdata_loader(64), 64 * BATCH, wall=True),
    ],
    unit="us/sample",
    scale=1e6,
    repeats=5,
)
report.race(
    "batch 64, one process",
    [
        Contender(US, lambda: ours(TOKENS_ONLY, batch=64), BATCHES * 64, wall=True),
        Contender("conceptloader, default outputs", lambda: ours({}, batch=64), BATCHES * 64, wall=True),
        Contender("C: 2 threads, 4 buffers each", lambda: raw_threads(4, 64), BATCHES * 64, wall=True),
        Contender("C: the same, default outputs", lambda: raw_threads(4, 64, default=True), BATCHES * 64, wall=True),
    ],
    unit="us/sample",
    scale=1e6,
    repeats=5,
)
report.finish()
