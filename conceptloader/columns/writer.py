"""Values of the rows of batches, written to the place of the tokens that the rows hold, in any order of the rows."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash

from conceptloader.base.checks import as_count
from conceptloader.base.strict import unknown
from conceptloader.blend import Blend, open_blend
from conceptloader.columns.finish import finish, give_back
from conceptloader.columns.places import At, Pieces, pieces_of
from conceptloader.columns.unfinished import Plan, Unfinished, taken
from conceptloader.columns.values import Array, Stored, as_stored
from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import items_of, ragged
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.format.spec.columnfile import TYPES, ColumnFile, column_file
from conceptloader.format.spec.columns import Ints
from conceptloader.kernels.arrays import BATCH
from conceptloader.storage.durable import require_local

_FLUSH_BYTES = 1 << 28
_FLUSH_S = 30.0
_TOKENS = {"labels": ("labels",), "inputs": ("input_ids", "tokens")}  # keys of a batch; the last one is Megatron's


class Known(NamedTuple):
    """What was in the logs when the writer began, in order of `start`, each once."""

    start: Ints
    stop: Ints
    hash: Any


class ColumnWriter:
    """Writes a column of a finished dataset; made by `column_writer`.

    Attributes:
        tokens: How many this writer has written values of.
        known: How many of its tokens had values already, and kept them.
        others: Rows of other datasets of the blend, which were passed over.
    """

    def __init__(self, dataset: Dataset, name: str, plan: Plan, source: Any = None, keep: bool = False) -> None:
        self.dataset, self.name, self.plan, self.keep = dataset, name, plan, keep
        self.tokens = self.known = self.others = 0
        self._unfinished, self._source = Unfinished(dataset.path, name), source
        self._unfinished.agree(plan)
        give_back(dataset, name, self._unfinished)
        self._prints = dataset.source_fingerprints[0]
        self._itemsize = plan.described().itemsize
        self._starts = np.array(dataset.shard_starts)
        self._flushed = time.monotonic()
        self._mine: dict[int, tuple[int, int]] = {}  # by the first token: the one after the last, and the hash
        records = self._unfinished.records()
        records = records[np.unique(records["start"], return_index=True)[1]]
        self._logged = Known(records["start"].astype(np.int64), records["stop"].astype(np.int64), records["hash"])

    def __repr__(self) -> str:
        plan = self.plan
        return f"<ColumnWriter of {self.name}, {plan.dtype} {list(plan.shape)}: {self.tokens:,} tokens written>"

    def __enter__(self) -> "ColumnWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, batch: Mapping[str, Any], values: Any) -> int:
        """Write the values of a batch of the loader: [B, S, *shape], in numpy or torch, on any device.

        Each stands where the label that it belongs to does (or the input, as `at` says). Values at padding, at what
        `exclude` takes out, at labels that `ignore_index` replaces, and of rows of other datasets are passed over.
        Tokens that have values already are compared with these, unless `keep`.

        Args:
            batch: As the loader gave it: `sample_index` says which tokens its rows are, and `labels` (or `input_ids`)
                are compared with the dataset's.
            values: An array or tensor. Integers become integers of the column's type, floats are rounded to it.

        Returns:
            How many tokens it wrote.

        Raises:
            ConfigError: For values of another shape or kind, NaN, what the type cannot hold, other values than a row
                has already, and rows that are not the tokens of the dataset. Nothing of the batch is written.
            ReadError: Nothing can be written: the disk is full. What was logged before stays.
        """
        tokens, samples, pieces, others = self._pieces(batch)
        where = f"column {self.name}"
        stored = as_stored(values, self.plan.dtype, 2, where)
        expected = (*tokens.shape, *self.plan.shape)
        if stored.values.shape != expected:
            rule = f"{list(expected)}: a row for each of the batch, a position for each of its {self.plan.at}, an item"
            raise ConfigError(
                where, f"values of shape {list(stored.values.shape)}", rule, "reshape the values: values.reshape(...)"
            )
        self._check(tokens, samples, pieces, stored)
        self.others += others
        return self._put(pieces, stored.values, lambda row: f"{where}: sample {samples[row]}")

    def has(self, batch: Mapping[str, Any]) -> bool:
        """Whether all tokens of a batch have values: those of a run that was killed need not be computed again."""
        pieces = self._pieces(batch)[2]
        return all(self._value(start, stop) is not None for start, stop in self._spans(pieces))

    def flush(self) -> None:
        """Sync what was written, so that it counts from now on; done by itself every 256 MiB and 30 seconds."""
        self._unfinished.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush, and close all files. The column is finished by `finish`, in one process."""
        self._unfinished.close()

    def finish(self, partial: bool = False) -> ColumnFile:
        """Check what all writers have written, and make it the column: to be called once, after they are closed.

        Every range that a writer logged is compared with its hash, in the pass that makes the checksums.

        Args:
            partial: Whether tokens may have no value. First tokens of documents always may: nothing predicts them.

        Returns:
            What NAME.column.json says.

        Raises:
            ConfigError: Tokens lack a value, a writer is still open, or two wrote other values of the same tokens. What
                was written stays, and can be continued.
            FormatError: The dataset is another one meanwhile.
            ReadError: A file cannot be read or written.
        """
        self.close()
        return finish(self.dataset.path, self.name, partial, self.keep, self.dataset.files.roots.given)

    def put(self, start: int, values: Any, where: str) -> None:
        """Write the values of tokens [start, ...) of the dataset: for what comes from files.

        where: what they are, for messages.
        """
        stored = as_stored(values, self.plan.dtype, 1, where)
        require_fitting(stored, self.plan, where)
        cut = self.dataset.cut(np.array([start]), np.array([start + len(stored.values)]))
        pieces = Pieces(cut.row, cut.first + cut.base - start, cut.shard, cut.first, cut.end)
        self._put(pieces, stored.values[None], lambda row: where)

    def _pieces(self, batch: Mapping[str, Any]) -> tuple[Array, Ints, Pieces, int]:
        """(the tokens of a batch, its samples, which tokens they are, rows of other datasets)."""
        keys = [key for key in _TOKENS[self.plan.at] if key in batch]
        if "sample_index" not in batch or not keys:
            lacks = "sample_index" if "sample_index" not in batch else _TOKENS[self.plan.at][0]
            fix = f"set outputs.{lacks}: true" if lacks == "sample_index" else f"keep {lacks!r} in the batch"
            raise ConfigError("batch", f"no {lacks}", "a batch as the loader gives it", fix)
        tokens, samples = _numpy(batch[keys[0]]), _numpy(batch["sample_index"]).astype(np.int64).reshape(-1)
        if tokens.ndim != 2 or len(samples) != len(tokens):
            found = f"{list(tokens.shape)} tokens and {len(samples)} samples"
            raise ConfigError("batch", found, "a row for each sample", "pass the batch as the loader gave it")
        pieces, others = pieces_of(self._blend(), samples, self.plan.at, self._is_mine)
        reach = int((pieces.place + pieces.end - pieces.first).max(initial=0))
        if reach > tokens.shape[1]:
            fix = "gather what ranks of context parallelism have of a sample, and call write on one of them"
            raise ConfigError("batch", f"{tokens.shape[1]} {self.plan.at} a sample", f"whole samples, {reach}", fix)
        return tokens, samples, pieces.where(tokens >= 0), others

    def _blend(self) -> Blend:
        """That in force: weights that were set live are in it."""
        if self._source is None:
            fix = "pass the loader: column_writer(..., loader=loader)"
            raise ConfigError(f"column {self.name}", "no loader", "the loader whose batches are written", fix)
        found: Blend = self._source if isinstance(self._source, Blend) else self._source.blend
        return found

    def check_source(self) -> None:
        """Raise ConfigError for a loader that does not read the dataset."""
        views = [view for view in self._blend().views if view is not None]
        if not any(self._is_mine(view.dataset) for view in views):
            read = ", ".join(f"{view.name} ({view.dataset.source})" for view in views[:4])
            raise ConfigError(
                f"column {self.name}: loader",
                f"other tokens than those of {self.dataset.path}: {read}",
                "a loader that reads this dataset, or a subset of it",
                f"make the loader of {self.dataset.path}, whose tokenizer the values belong to",
            )

    def _is_mine(self, dataset: Dataset) -> bool:
        return dataset.source_fingerprints[0] == self._prints

    def _spans(self, pieces: Pieces) -> Iterator[tuple[int, int]]:
        base = self._starts[pieces.shard]
        return zip((pieces.first + base).tolist(), (pieces.end + base).tolist(), strict=True)

    def _value(self, start: int, stop: int) -> int | None:
        """The hash of the values of tokens that were written together, None where they were not."""
        found = self._mine.get(start)
        if found is None:
            at = int(np.searchsorted(self._logged.start, start))
            if at == len(self._logged.start) or self._logged.start[at] != start:
                return None
            found = int(self._logged.stop[at]), int(self._logged.hash[at])
        return found[1] if found[0] == stop else None

    def _put(self, pieces: Pieces, values: Array, where: Callable[[int], str]) -> int:
        """Write what has no values yet. where: a row, for messages. Returns: how many tokens these are."""
        new: dict[int, tuple[int, int, int, int, memoryview]] = {}
        columns = (pieces.row, pieces.place, pieces.shard, pieces.first, pieces.end)
        for row, place, shard, first, end in zip(*(column.tolist() for column in columns), strict=True):
            start, stop = (int(self._starts[shard]) + token for token in (first, end))
            before = new[start][1] if start in new else self._value(start, stop)
            if before is not None and self.keep:
                continue
            data = values[row, place : place + stop - start].view("u1").reshape(-1).data
            found = xxhash.xxh3_64_intdigest(data)
            if before is None:
                new[start] = stop, found, shard, first, data
            elif before != found:
                raise ConfigError(
                    where(row),
                    f"other values than those that tokens [{start:,}, {stop:,}) of the dataset have already",
                    "the same: each token is to be written once",
                    "skip the rows that has(batch) knows, or pass keep=True to column_writer to keep the first ones",
                )
        for start, (stop, found, shard, first, data) in new.items():
            self._unfinished.put(shard, first * self._itemsize, data, (start, stop), found)
            self._mine[start] = stop, found
        count = sum(stop - start for start, (stop, *_) in new.items())
        self.tokens += count
        self.known += int((pieces.end - pieces.first).sum()) - count
        if self._unfinished.waiting >= _FLUSH_BYTES or time.monotonic() - self._flushed >= _FLUSH_S:
            self.flush()
        return count

    def _check(self, tokens: Array, samples: Ints, pieces: Pieces, stored: Stored) -> None:
        """Raise ConfigError for tokens that are not those of the dataset, and values that none of its type has."""
        for shard in np.unique(pieces.shard).tolist():
            row, place, _, first, end = (column[pieces.shard == shard] for column in pieces)
            flat = ragged(row * tokens.shape[1] + place, end - first)
            there, given = items_of(self.dataset.reader, shard, first, end)["token"], tokens.reshape(-1)[flat]
            other = np.flatnonzero(there != given)
            if len(other):
                at, position = divmod(int(flat[other[0]]), tokens.shape[1])
                raise ConfigError(
                    f"column {self.name}: sample {samples[at]}: {self.plan.at}[{position}]",
                    f"token {int(given[other[0]])}",
                    f"{int(there[other[0]])}, as {self.dataset.path} has there",
                    "pass batches as this loader gives them, without a transform that moves or replaces tokens",
                )
            if stored.wrong is not None and (bad := flat[stored.wrong.reshape(-1)[flat]]).size:
                at, position = divmod(int(bad[0]), tokens.shape[1])
                where = f"column {self.name}: sample {samples[at]}, position {position}"
                raise _wrong(where, self.plan, stored.given[at, position])


def require_fitting(stored: Stored, plan: Plan, where: str, first: int = 0) -> None:
    """Raise ConfigError for items that are not as the column has them. first: the token of the first, for messages."""
    if stored.values.shape[1:] != plan.shape:
        found = f"items of shape {list(stored.values.shape[1:])}"
        raise ConfigError(where, found, f"{list(plan.shape)}, as of the column", "correct the file, or pass --shape")
    if stored.wrong is not None:
        at = int(np.argmax(stored.wrong))
        raise _wrong(f"{where}, token {first + at:,}", plan, stored.given[at])


def _wrong(where: str, plan: Plan, given: Any) -> ConfigError:
    values = np.asarray(given).reshape(-1)
    fix = "pass another dtype to column_writer, or mask these values"
    return ConfigError(where, f"{values[:4].tolist()}", f"numbers that {plan.dtype} holds, not NaN", fix)


def begin(
    path: str | os.PathLike[str],
    name: str,
    dtype: str,
    shape: int | Sequence[int],
    at: At = "labels",
    roots: Sequence[str | os.PathLike[str]] | None = None,
) -> tuple[Dataset, Plan]:
    """A dataset that can get such a column. Raises: see column_writer."""
    dataset = open_dataset(path, roots)
    require_local(dataset.path)
    if dataset.viewed is not None:
        fix = f"pass its source, whose columns it has: {dataset.source}"
        raise ConfigError(dataset.path, "a subset", "a dataset with files of its own", fix)
    shape = (as_count(shape, "shape"),) if isinstance(shape, int) else tuple(as_count(one, "shape") for one in shape)
    plan = Plan(dtype=dtype, shape=shape, stream_fingerprint=dataset.stream_fingerprint, at=at)
    if dtype not in TYPES:
        raise unknown(f"column {name}: dtype", dtype, TYPES, "type")
    plan.described(dataset.num_shards).check(name, dataset.manifest)
    if name in {row.name for row in BATCH}:
        fix = "pass another NAME, which batches can have next to it"
        raise ConfigError(f"column {name}", f"{name!r}, an array of each batch", "a name that no array has", fix)
    if os.path.lexists(os.path.join(dataset.path, column_file(name))):
        raise taken(dataset.path, name)
    return dataset, plan


def column_writer(
    path: str | os.PathLike[str],
    name: str,
    dtype: str,
    shape: int | Sequence[int] = (),
    *,
    loader: Any = None,
    at: At = "labels",
    keep: bool = False,
    roots: Sequence[str | os.PathLike[str]] | None = None,
) -> ColumnWriter:
    """Begin to write a column of a dataset, or continue: in any order of its samples, from any number of processes.

    Args:
        path: Directory of a finished dataset, also an adopted one; of a subset, its source.
        name: Of the column.
        dtype: Of an element: u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 or bf16.
        shape: Of the item of a token: (), (k,) or (k, l).
        loader: Whose batches are written: any loader or dataset of this package, or its configuration if no weights are
            set while it runs. Not needed to finish.
        at: Whether values belong to the labels, as what a model predicts does, or to the inputs.
        keep: Tokens that have values keep them; by default other ones are an error.
        roots: See `open_dataset`.

    Returns:
        The writer, a context manager with the methods `write`, `has` and `finish` (docs/distillation.md).

    Raises:
        ConfigError: For a column that is there already, or is being written with another type, and a loader that does
            not read the dataset.
        FormatError: The dataset is corrupt.
        ReadError: A file cannot be read or written.
    """
    dataset, plan = begin(path, name, dtype, shape, at, roots)
    source = loader if loader is None or hasattr(loader, "blend") else open_blend(loader)
    writer = ColumnWriter(dataset, name, plan, source, keep)
    if source is not None:
        writer.check_source()
    return writer


def _numpy(values: Any) -> Array:
    """An array of the batch, which may be a tensor on a device."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
