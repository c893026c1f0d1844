"""A window of 4,097 tokens with about 6 spans of 5 concepts, as tensors, beside its tokens alone and naive readers."""

import pickle

import numpy as np
from data import ROOT, SPAN, TOKENS, TOKENS_ONLY, corpus
from harness import US, Contender, Report

import conceptloader as cl
from conceptloader.loader.batch.open import open_reader

SEQ_LEN, BATCH, BATCHES = 4096, 16, 32

report = Report("metadata")
path = corpus("concepts")
rng = np.random.default_rng(0)
samples = rng.integers(0, (TOKENS - 1) // SEQ_LEN - 8, BATCH * BATCHES).astype(np.uint64)
few = samples[:64].tolist()


def reader(concepts):
    config = {"seq_len": SEQ_LEN, "datasets": {"a": {"path": path}}, "tracks": concepts, "outputs": TOKENS_ONLY}
    return open_reader(cl.open_blend(cl.load_config(config)))


def each_batch(batches):
    for k in range(0, len(samples), BATCH):
        batches.read(samples[k : k + BATCH])


def pickled_records():
    """The published layout: one pickled record a span, found by an array of offsets."""
    file, index = ROOT / "records.pickle", ROOT / "records.index.npy"
    if not index.exists():
        offsets = [0]
        with open(file, "wb") as target:
            for k in range(TOKENS // SPAN + 1):
                record = {"document": k, "concepts": rng.integers(0, 1000, 5).tolist()}
                offsets.append(offsets[-1] + target.write(pickle.dumps(record)))
        np.save(index, np.array(offsets, np.uint64))
    return str(file), np.load(index, mmap_mode="r")


records, index = pickled_records()
stream = np.memmap(f"{path}/00000.stream.bin", np.uint16, "r")


def naive(per_token):
    """Seek, read and unpickle a record for every token, or for every span."""
    with open(records, "rb") as file:
        for sample in few[:4] if per_token else few:
            start = sample * SEQ_LEN % (len(stream) - SEQ_LEN - 1)
            np.array(stream[start : start + SEQ_LEN + 1], np.int64)
            tokens = range(start, start + SEQ_LEN + 1)
            for record in (t // SPAN for t in tokens) if per_token else {t // SPAN for t in tokens}:
                file.seek(int(index[record]))
                pickle.loads(file.read(int(index[record + 1] - index[record])))


padded, ragged, alone = reader({"concepts": {}}), reader({"concepts": {"layout": "ragged"}}), reader({})
report.race(
    "warm, batches of 16",
    [
        Contender(US, lambda: each_batch(padded), len(samples)),
        Contender("conceptloader, ragged", lambda: each_batch(ragged), len(samples)),
        Contender("conceptloader, tokens alone", lambda: each_batch(alone), len(samples)),
        Contender("naive: unpickle a record per span", lambda: naive(False), len(few)),
        Contender("naive: unpickle a record per token", lambda: naive(True), 4),
    ],
    unit="us",
    scale=1e6,
    repeats=5,
)
report.finish()
