"""Columns as files, written without the package's writer."""

import numpy as np
import xxhash

import conceptloader as cl
from conceptloader.format.spec.columnfile import (
    ColumnFile,
    HoleFiles,
    ItemFiles,
    column_file,
    holes_kind,
    items_kind,
    pack_holes,
)
from conceptloader.storage.sample import sample_checksum


def random_items(rng, tokens, dtype, shape):
    """Items of which none is 0; bf16 as its bits."""
    if dtype[0] in "fb":
        values = (rng.integers(1, 100, (tokens, *shape)) / 4).astype("f4" if dtype == "bf16" else dtype)
        return (values.view(np.uint32) >> 16).astype("<u2") if dtype == "bf16" else values
    return rng.integers(1, min(256 ** int(dtype[1]) // 2, 1 << 62), (tokens, *shape)).astype(dtype)


def add_column(
    path,
    name,
    items,
    dtype=None,
    missing=None,
    without=(),
):
    """Write a column of all tokens. missing: bool, tokens without a value. without: shards that have no file."""
    dataset = cl.open_dataset(path)
    table, starts = dataset.manifest.shards, dataset.shard_starts
    kinds = {}
    empty, begins = np.zeros(dataset.num_tokens, np.bool_), {0}
    if len(dataset):
        begins |= {dataset.document_range(k)[0] for k in range(len(dataset))}
    lacking = empty if missing is None else missing
    items = items.copy()
    items[lacking] = 0
    shards = range(len(table))
    for kind, contents in (
        (items_kind(name), [None if k in without else items[starts[k] : starts[k + 1]].tobytes() for k in shards]),
        (
            holes_kind(name),
            [
                None if k in without or not lacking[starts[k] : starts[k + 1]].any()
                else pack_holes(lacking[starts[k] : starts[k + 1]]) for k in shards
            ],
        ),
    ):  # fmt: skip
        files = {"size": [], "checksum": [], "sample": []}
        for prefix, data in zip(table.path, contents, strict=True):
            if data is not None:
                (path / f"{prefix}.{kind}").write_bytes(data)
            files["size"].append(-1 if data is None else len(data))
            files["checksum"].append(None if data is None else xxhash.xxh3_64_hexdigest(data))
            files["sample"].append(None if data is None else _sample(data))
        kinds[kind] = files

    def of(kind):
        return {**kinds[kind], "size": np.array(kinds[kind]["size"], np.int64)}

    holes = None
    if missing is not None:
        kept = [t for k in shards if k not in without for t in range(starts[k], starts[k + 1]) if lacking[t]]
        starting = sum(t in begins for t in kept)
        holes = HoleFiles(**of(holes_kind(name)), tokens=len(kept), starts=starting)
    column = ColumnFile(
        dtype=dtype or items.dtype.str[1:],
        shape=items.shape[1:],
        stream_fingerprint=dataset.manifest.stream_fingerprint(),
        files=ItemFiles(**of(items_kind(name))),
        holes=holes,
        created_by="tests",
    )
    (path / column_file(name)).write_bytes(column.dump())
    return column


COLUMNS = ("teacher_ids", "teacher_logprobs")


def add_teacher(path, number, vocabulary, top=4):
    """Ids and log probabilities of a teacher: a function of the dataset's number and the token's place. Returns both,
    by column."""
    places = np.arange(cl.open_dataset(path).num_tokens)[:, None]
    ids = (places * 31 + np.arange(top) * 7 + number * 11) % vocabulary
    logprobs = -2.0 - (places % 5 + np.arange(top)) / 4
    items = dict(zip(COLUMNS, (ids.astype("u2"), logprobs.astype("f2")), strict=True))
    for column in COLUMNS:
        add_column(path, column, items[column])
    return items


def _sample(data):
    return sample_checksum(len(data), lambda at, size: data[at : at + size])


def widened(items, dtype):
    """As a batch has them."""
    if dtype == "bf16":
        return (items.astype(np.uint32) << 16).view(np.float32)
    return items.astype({"u2": "i4", "u4": "i8"}.get(dtype, dtype))
