"""A window of 4,096 tokens with values for each: scalar fields beside the tokens, and columns in files of their own."""

import os

import numpy as np
from data import ROOT, TOKENS_ONLY
from harness import US, Contender, Report

import conceptloader as cl
from conceptloader.batch.open import open_reader
from conceptloader.columns.finish import remove
from conceptloader.format.spec.columnfile import ColumnFile, ItemFiles, column_file, items_kind
from conceptloader.storage.sample import sample_checksum

SEQ_LEN, BATCH, BATCHES, TOKENS = 4096, 16, 16, 1 << 20
FIELDS = [f"field{k}" for k in range(8)]
COLUMNS = {"ids": ("u4", 32), "probs": ("f2", 32)}
EIGHT = {"eight": ("u2", 8)}  # what the fields hold

report = Report("columns")
rng = np.random.default_rng(0)
samples = rng.integers(0, TOKENS // SEQ_LEN - 1, BATCH * BATCHES).astype(np.uint64)


def corpus(name: str, fields: dict[str, str]) -> str:
    path = ROOT / name
    if (path / "manifest.json").exists():
        return str(path)
    tokenizer = cl.writing.Tokenizer(name="random", vocab_size=50_000)
    options = cl.writing.BuildOptions(token_type="u2", tokenizer=tokenizer, fields=fields)
    with cl.writing.create_writer(path, options, plan=[0]).shard(0) as shard:
        for _ in range(TOKENS >> 10):
            values = {name: rng.integers(0, 1 << 16, 1024) for name in fields}
            shard.add_document(rng.integers(0, 50_000, 1024), fields=values)
    cl.writing.finalize(path)
    return str(path)


def with_columns(path: str) -> str:
    """Add the columns, as arrays of random bytes without NaN."""
    for name, (dtype, length) in {**COLUMNS, **EIGHT}.items():
        file = f"{path}/00000.{items_kind(name)}"
        if os.path.exists(f"{path}/{column_file(name)}"):
            continue
        items = rng.integers(0, 30_000, (TOKENS, length)).astype(dtype)
        items.tofile(file)
        size = items.nbytes
        with open(file, "rb") as source:
            sample = sample_checksum(size, lambda at, count, source=source: os.pread(source.fileno(), count, at))
        files = ItemFiles(np.array([size]), [None], [sample])
        tokens = cl.open_dataset(path).stream_fingerprint
        shape = items.shape[1:]
        column = ColumnFile(dtype=dtype, shape=shape, created_by="bench", stream_fingerprint=tokens, files=files)
        with open(f"{path}/{column_file(name)}", "wb") as target:
            target.write(column.dump())
    return path


def ours(path: str, outputs: dict):
    config = {"seq_len": SEQ_LEN, "datasets": {"a": {"path": path}}, "outputs": outputs}
    reader = open_reader(cl.open_blend(cl.load_config(config)))

    def read() -> None:
        for k in range(0, len(samples), BATCH):
            reader.read(samples[k : k + BATCH])

    return read


def raw(path: str, names: list[str]):
    """The same items by one pread each, into memory that is used again."""
    files = []
    for name in names:
        item = np.dtype(COLUMNS[name][0]).itemsize * COLUMNS[name][1]
        descriptor = os.open(f"{path}/00000.{items_kind(name)}", os.O_RDONLY)
        out = np.empty(BATCH * SEQ_LEN * item, np.uint8)
        files.append((descriptor, item, out))
    windows = rng.integers(0, TOKENS // SEQ_LEN - 1, BATCH * BATCHES).astype(np.uint64)

    def read() -> None:
        for descriptor, item, out in files:
            size = SEQ_LEN * item
            for k in range(len(windows)):
                view = memoryview(out)[k % BATCH * size : (k % BATCH + 1) * size]
                os.preadv(descriptor, [view], int(windows[k]) * size + item)  # as labels

    return read


plain, rich = corpus("columns-plain", {}), corpus("columns-fields", dict.fromkeys(FIELDS, "u2"))
wide = with_columns(corpus("columns-wide", {}))
fields = {"fields": dict.fromkeys(FIELDS, "labels")}
stored, eight = ({"columns": {name: {"at": "labels", "dtype": "stored"} for name in of}} for of in (COLUMNS, EIGHT))
widened = {"columns": dict.fromkeys(COLUMNS, "labels")}

for title, outputs in (("default outputs", {}), ("leanest outputs", TOKENS_ONLY)):
    report.race(
        f"warm, batches of 16, {title}",
        [
            Contender(US, ours(plain, outputs), len(samples)),
            Contender("conceptloader, tokens of a dataset with 8 u2 fields", ours(rich, outputs), len(samples)),
            Contender("conceptloader, 8 u2 fields", ours(rich, {**outputs, **fields}), len(samples)),
            Contender("conceptloader, tokens of a dataset with columns", ours(wide, outputs), len(samples)),
            Contender("conceptloader, a column u2[8]", ours(wide, {**outputs, **eight}), len(samples)),
        ],
        unit="us",
        scale=1e6,
    )
report.race(
    "warm, batches of 16, u4[32] and f2[32] for each token",
    [
        Contender(US, ours(wide, {**TOKENS_ONLY, **stored}), len(samples)),
        Contender("conceptloader, widened", ours(wide, {**TOKENS_ONLY, **widened}), len(samples)),
        Contender("conceptloader, tokens alone", ours(wide, TOKENS_ONLY), len(samples)),
        Contender("pread of the same bytes", raw(wide, list(COLUMNS)), len(samples)),
    ],
    unit="us",
    scale=1e6,
)


def written(path: str):
    """The columns of shuffled windows, under other names, to the disk; and removed."""
    loader = cl.batches({"seq_len": SEQ_LEN, "datasets": {"a": {"path": path}}}, micro_batch_size=BATCH)
    batches = [{k: np.copy(v) for k, v in batch.items()} for batch, _ in zip(loader, range(BATCHES - 1), strict=False)]

    def write() -> None:
        for name, (dtype, length) in COLUMNS.items():
            with cl.column_writer(path, f"new_{name}", dtype, length, loader=loader) as writer:
                for batch in batches:
                    writer.write(batch, values[name])
            remove(path, f"new_{name}")

    return write


def pwritten(path: str):
    """The same bytes, one batch after the other."""

    def write() -> None:
        for name, items in values.items():
            descriptor = os.open(f"{path}/{name}.raw", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            for k in range(BATCHES - 1):
                os.pwrite(descriptor, items.data.cast("B"), k * items.nbytes)
            os.fsync(descriptor)
            os.close(descriptor)
            os.unlink(f"{path}/{name}.raw")

    return write


values = {
    name: rng.integers(0, 30_000, (BATCH, SEQ_LEN, length)).astype(dtype) for name, (dtype, length) in COLUMNS.items()
}
count = BATCH * (BATCHES - 1)
report.race(
    "writing u4[32] and f2[32] for each token, synced",
    [Contender(US, written(plain), count), Contender("pwrite of the same bytes", pwritten(plain), count)],
    unit="us",
    scale=1e6,
    repeats=5,
)
report.finish()
