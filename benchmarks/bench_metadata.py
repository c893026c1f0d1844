"""A window of 4,097 tokens with about 6 spans of 5 concepts, as tensors, beside its tokens alone and naive readers."""

import pickle
from pathlib import Path

import numpy as np
from data import ROOT, SPAN, TOKENS, TOKENS_ONLY, annotated, corpus
from harness import US, Contender, Report

import conceptloader as cl
from conceptloader.batch.open import open_reader

SEQ_LEN, BATCH, BATCHES = 4096, 16, 32

report = Report("metadata")
path = corpus("concepts")
four_kinds = annotated()
rng = np.random.default_rng(0)
samples = rng.integers(0, (TOKENS - 1) // SEQ_LEN - 8, BATCH * BATCHES).astype(np.uint64)
few = samples[:64].tolist()


def reader(concepts: dict, path: str = path, outputs: dict = TOKENS_ONLY):
    config = {"seq_len": SEQ_LEN, "datasets": {"a": {"path": path}}, "tracks": concepts, "outputs": outputs}
    return open_reader(cl.open_blend(cl.load_config(config)))


def each_batch(batches, samples: np.ndarray = samples) -> None:
    for k in range(0, len(samples), BATCH):
        batches.read(samples[k : k + BATCH])


def window_bytes(concepts: dict, outputs: dict) -> float:
    """Of the tensors that leave the loader, for each window; what two of them share counts once."""
    config = {"seq_len": SEQ_LEN, "datasets": {"a": {"path": four_kinds}}, "tracks": concepts, "outputs": outputs}
    with cl.make_dataloader(config, micro_batch_size=BATCH) as loader:
        batch = next(iter(loader))
    begun, total = 0, 0
    for start, size in sorted((tensor.data_ptr(), tensor.nbytes) for tensor in batch.values()):
        total += max(0, start + size - max(start, begun))
        begun = max(begun, start + size)
    return total / BATCH


def pickled_records() -> tuple[str, np.ndarray]:
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


def naive(per_token: bool) -> None:
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

kinds, bare = reader({"concepts": {}}, four_kinds), reader({}, four_kinds)
kinds_all, bare_all = reader({"concepts": {}}, four_kinds, {}), reader({}, four_kinds, {})
windows = cl.open_dataset(four_kinds).num_tokens // SEQ_LEN - 1
some = rng.integers(0, windows, BATCH * BATCHES).astype(np.uint64)
report.race(
    "warm, batches of 16, four kinds of concepts: 38 spans and 560 labels a window",
    [
        Contender(US, lambda: each_batch(kinds, some), len(some)),
        Contender("conceptloader, tokens alone", lambda: each_batch(bare, some), len(some)),
        Contender("conceptloader, default outputs", lambda: each_batch(kinds_all, some), len(some)),
        Contender("conceptloader, these, tokens alone", lambda: each_batch(bare_all, some), len(some)),
    ],
    unit="us",
    scale=1e6,
    repeats=9,
)
files = {file.name: file.stat().st_size for file in Path(four_kinds).glob("00000.*")}
report.fact("four kinds, on disk", US, sum(files.values()) / files["00000.stream.bin"], "x the bare tokens of 4 bytes")
report.fact("four kinds, a window, one tensor of tokens", US, window_bytes({"concepts": {}}, TOKENS_ONLY), "bytes")
report.fact("the same, ragged", US, window_bytes({"concepts": {"layout": "ragged"}}, TOKENS_ONLY), "bytes")
report.fact("the same, tokens alone", US, window_bytes({}, TOKENS_ONLY), "bytes")
report.fact("four kinds, a window, default outputs", US, window_bytes({"concepts": {}}, {}), "bytes")
report.finish()
