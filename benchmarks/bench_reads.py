"""Random windows of 4,097 uint16 tokens from a warm page cache: CPU time a window, ours and the peers' and C's."""

import os

import numpy as np
import peers
from data import DOCUMENT, ROOT, TOKENS, TOKENS_ONLY, corpus, pointer, raw_library
from harness import US, Contender, Report

import conceptloader as cl
from conceptloader.loader.batch.open import open_reader
from conceptloader.trace.subset import SubsetOptions, make_subsets

SEQ_LEN, BATCH, BATCHES = 4096, 16, 64

report = Report("reads")
library = raw_library()
path = corpus("bare", span=0, shards=1)
stream = f"{path}/00000.stream.bin"
descriptor = os.open(stream, os.O_RDONLY)
tokens = np.fromfile(stream, np.uint16)
rng = np.random.default_rng(0)
windows = rng.integers(0, int(0.89 * TOKENS) // SEQ_LEN, BATCH * BATCHES)
offsets = (windows * SEQ_LEN * 2).astype(np.uint64)
buffer = np.empty(2 * (SEQ_LEN + 1), np.uint8)
out = np.empty((64, SEQ_LEN + 1), np.int64)
inputs, labels = np.empty((2, BATCH, SEQ_LEN), np.int64)


def reader(path=path, **outputs):
    config = {"seq_len": SEQ_LEN, "datasets": {"a": {"path": path}}, "outputs": outputs}
    return open_reader(cl.open_blend(cl.load_config(config)))


def each_batch(read, batch=BATCH):
    for k in range(0, len(windows), batch):
        read(slice(k, k + batch))


def ours(batches, batch=BATCH):
    return lambda: each_batch(lambda part: batches.read(samples[part]), batch)


def raw(function, *arrays, size=SEQ_LEN + 1, batch=BATCH):
    def read(part):
        if function(descriptor, pointer(offsets[part]), batch, size, *map(pointer, arrays)):
            raise OSError("short read")

    return lambda: each_batch(read, batch)


view = ROOT / "bare-view"
if not view.exists():
    make_subsets(path, view, SubsetOptions(where="document % 10 > 0"))
whole, full, viewed = reader(**TOKENS_ONLY), reader(), reader(str(view))
samples = windows.astype(np.uint64)
trove, olmo = peers.datatrove(stream), peers.olmo([stream])
gpt = peers.megatron(tokens, DOCUMENT, len(windows))
few = windows[:256].tolist()

report.race(
    "warm, batches of 16",
    [
        Contender(US, ours(whole), len(windows)),
        Contender("conceptloader, default outputs", ours(full), len(windows)),
        Contender("conceptloader, default outputs, a view of 90 % of the documents", ours(viewed), len(windows)),
        Contender("C: pread", raw(library.raw_pread, buffer, size=2 * (SEQ_LEN + 1)), len(windows)),
        Contender("C: pread, widened", raw(library.raw_pread_widen, out), len(windows)),
        Contender("C: pread, inputs and labels", raw(library.raw_pread_batch, inputs, labels), len(windows)),
        Contender("datatrove", lambda: [trove[i] for i in few], len(few)),
        Contender("OLMo-core", lambda: [olmo[i] for i in few], len(few)),
        Contender("Megatron GPTDataset", lambda: [gpt[i] for i in range(len(few))], len(few)),
    ],
    unit="us",
    scale=1e6,
)
report.race(
    "warm, batches of 64",
    [
        Contender(US, ours(whole, 64), len(windows)),
        Contender("C: pread, widened", raw(library.raw_pread_widen, out, batch=64), len(windows)),
    ],
    unit="us",
    scale=1e6,
)
report.finish()
