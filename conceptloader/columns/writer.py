"""Values of the rows of batches, kept by the tokens that the rows hold, in any order of the rows."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from conceptloader.base.checks import as_count
from conceptloader.base.strict import unknown
from conceptloader.columns.finish import finish
from conceptloader.columns.parts import Parts, PartWriter, taken
from conceptloader.columns.places import At, Pieces, pieces_of
from conceptloader.columns.values import Array, Stored, as_stored
from conceptloader.config import Blend, open_blend
from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import items_of, ragged
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.format.spec.columnfile import TYPES, ColumnFile, ItemFiles, column_file
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.manifest import CREATED_BY
from conceptloader.kernels.arrays import BATCH
from conceptloader.storage.durable import require_local

_TOKENS = {"labels": ("labels",), "inputs": ("input_ids", "tokens")}  # keys of a batch; the last one is Megatron's


class ColumnWriter:
    """Writes a column of a finished dataset; made by `column_writer`.

    Attributes:
        tokens: How many this writer has written values of.
    """

    def __init__(self, dataset: Dataset, name: str, column: ColumnFile, source: Any = None, keep: bool = False) -> None:
        self.dataset, self.name, self.keep, self.tokens = dataset, name, keep, 0
        parts, self._source = Parts(dataset.path, name), source
        self.column = parts.agree(dataset.manifest, column)
        self._at: At = column.extra["at"]
        self._starts = np.array(dataset.shard_starts)
        self._prints = dataset.source_fingerprints[0]
        self._writer = PartWriter(parts, self.column.itemsize, getattr(source, "dp_rank", 0))

    def __repr__(self) -> str:
        return f"<ColumnWriter of {self.name}, {self.column.item}: {self.tokens:,} tokens written>"

    def __enter__(self) -> "ColumnWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, batch: Mapping[str, Any], values: Any) -> int:
        """Write the values of a batch of the loader: [B, S, *shape], in numpy or torch, on any device.

        Each stands where the label that it belongs to does (or the input, as `at` says). Values at padding, at what
        `exclude` takes out, at labels that `ignore_index` replaces, and of rows of other datasets are passed over.
        Of values of one token the last one holds, or with `keep` the first.

        Args:
            batch: As the loader gave it: `sample_index` says which tokens its rows are, and `labels` (or `input_ids`)
                are compared with the dataset's.
            values: An array or tensor. Integers become integers of the column's type, floats are rounded to it.

        Returns:
            How many tokens it wrote.

        Raises:
            ConfigError: For values of another shape or kind, NaN, what the type cannot hold, and rows that are not the
                tokens of the dataset. Nothing of the batch is written.
            ReadError: Nothing can be written: the disk is full. What was flushed before stays.
        """
        tokens, samples, pieces = self._pieces(batch)
        where = f"column {self.name}"
        stored = as_stored(values, self.column.dtype, 2, where)
        expected = (*tokens.shape, *self.column.shape)
        if stored.values.shape != expected:
            rule = f"{list(expected)}: a row for each of the batch, a position for each of its {self._at}, an item"
            raise ConfigError(
                where, f"values of shape {list(stored.values.shape)}", rule, "reshape the values: values.reshape(...)"
            )
        self._check(tokens, samples, pieces, stored)
        if self.keep:
            start, stop = self._tokens_of(pieces)
            token, first = np.unique(ragged(start, stop - start), return_index=True)
            place = ragged(pieces.row * tokens.shape[1] + pieces.place, stop - start)[first]
            new = np.zeros(tokens.size, np.bool_)
            new[place] = self._writer.covered.counts(token, token + 1) == 0
            pieces = pieces.where(new.reshape(tokens.shape))
        return self._put(pieces, stored.values)

    def has(self, batch: Mapping[str, Any]) -> bool:
        """Whether all tokens of a batch have values: those of a run that was killed need not be computed again."""
        start, stop = self._tokens_of(self._pieces(batch)[2])
        return bool((self._writer.covered.counts(start, stop) == stop - start).all())

    def flush(self) -> None:
        """Put on the disk what was written; done by itself: docs/distillation.md says how often."""
        self._writer.flush()

    def close(self) -> None:
        """Flush. The column is finished by `finish`, in one process."""
        self.flush()

    def finish(self, partial: bool = False) -> ColumnFile:
        """Make what all writers have written the column: to be called once, after they are closed.

        Args:
            partial: Whether tokens may have no value. First tokens of documents always may: nothing predicts them.

        Returns:
            What NAME.column.json says.

        Raises:
            ConfigError: Tokens lack a value. What was written stays, and can be continued.
            FormatError: The dataset is another one meanwhile, or a file is not as it was written.
            ReadError: A file cannot be read or written.
        """
        self.close()
        return finish(self.dataset.path, self.name, partial, self.dataset.files.roots.given)

    def put(self, document: str | int, values: Any) -> None:
        """Write the values of all tokens of a document, the end of text included: of its id, or its number.

        Raises: as `write`, and ConfigError for an id that none or several have, and another number of values.
        """
        found = [document] if isinstance(document, int) else self.dataset.find_document(document)
        where = f"column {self.name}: document {document!r}"
        if len(found) != 1:
            fix = "pass the number of a document"
            raise ConfigError(where, f"{len(found)} documents with this id", "one document", fix)
        start, stop = self.dataset.document_range(found[0])
        if len(values) != stop - start:
            fix = "pass an item for each token, the end of text included"
            raise ConfigError(where, f"{len(values)} items", f"{stop - start}, one for each token", fix)
        if start < stop:
            self.put_tokens(start, values, where)

    def put_tokens(self, start: int, values: Any, where: str) -> None:
        """Write the values of tokens [start, ...) of the dataset. where: what they are, for messages."""
        stored = as_stored(values, self.column.dtype, 1, where)
        require_fitting(stored, self.column, where)
        cut = self.dataset.cut(np.array([start]), np.array([start + len(stored.values)]))
        pieces = Pieces(cut.row, cut.first + cut.base - start, cut.shard, cut.first, cut.end)
        self._put(pieces, stored.values[None])

    def _pieces(self, batch: Mapping[str, Any]) -> tuple[Array, Ints, Pieces]:
        """(the tokens of a batch, its samples, which tokens they are)."""
        keys = [key for key in _TOKENS[self._at] if key in batch]
        if "sample_index" not in batch or not keys:
            lacks = "sample_index" if "sample_index" not in batch else _TOKENS[self._at][0]
            fix = f"set outputs.{lacks}: true" if lacks == "sample_index" else f"keep {lacks!r} in the batch"
            raise ConfigError("batch", f"no {lacks}", "a batch as the loader gives it", fix)
        tokens, samples = _numpy(batch[keys[0]]), _numpy(batch["sample_index"]).astype(np.int64).reshape(-1)
        if tokens.ndim != 2 or len(samples) != len(tokens):
            found = f"{list(tokens.shape)} tokens and {len(samples)} samples"
            raise ConfigError("batch", found, "a row for each sample", "pass the batch as the loader gave it")
        pieces = pieces_of(self._blend(), samples, self._at, self._is_mine)
        reach = int((pieces.place + pieces.end - pieces.first).max(initial=0))
        if reach > tokens.shape[1]:
            fix = "gather what ranks of context parallelism have of a sample, and call write on one of them"
            raise ConfigError("batch", f"{tokens.shape[1]} {self._at} a sample", f"whole samples, {reach}", fix)
        return tokens, samples, pieces.where(tokens >= 0)

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

    def _tokens_of(self, pieces: Pieces) -> tuple[Ints, Ints]:
        """Those of the dataset, [start, stop) of each piece."""
        base = self._starts[pieces.shard]
        return pieces.first + base, pieces.end + base

    def _put(self, pieces: Pieces, values: Array) -> int:
        """Append the values of pieces, given by row and place. Returns: of how many tokens these are."""
        start, stop = self._tokens_of(pieces)
        places = zip(*(one.tolist() for one in (pieces.row, pieces.place, start, stop)), strict=True)
        self._writer.append(
            (first, end, values[row, place : place + end - first].view("u1").reshape(-1).data)
            for row, place, first, end in places
        )
        count = int((stop - start).sum())
        self.tokens += count
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
                    f"column {self.name}: sample {samples[at]}: {self._at}[{position}]",
                    f"token {int(given[other[0]])}",
                    f"{int(there[other[0]])}, as {self.dataset.path} has there",
                    "pass batches as this loader gives them, without a transform that moves or replaces tokens",
                )
            if stored.wrong is not None and (bad := flat[stored.wrong.reshape(-1)[flat]]).size:
                at, position = divmod(int(bad[0]), tokens.shape[1])
                where = f"column {self.name}: sample {samples[at]}, position {position}"
                raise _wrong(where, self.column, stored.given[at, position])


def require_fitting(stored: Stored, column: ColumnFile, where: str, first: int = 0) -> None:
    """Raise ConfigError for items that are not as the column has them. first: the token of the first, for messages."""
    if stored.values.shape[1:] != column.shape:
        found = f"items of shape {list(stored.values.shape[1:])}"
        raise ConfigError(where, found, f"{list(column.shape)}, as of the column", "correct the file")
    if stored.wrong is not None:
        at = int(np.argmax(stored.wrong))
        raise _wrong(f"{where}, token {first + at:,}", column, stored.given[at])


def _wrong(where: str, column: ColumnFile, given: Any) -> ConfigError:
    values = np.asarray(given).reshape(-1)
    fix = "pass another dtype to column_writer, or mask these values"
    return ConfigError(where, f"{values[:4].tolist()}", f"numbers that {column.dtype} holds, not NaN", fix)


def begin(
    path: str | os.PathLike[str],
    name: str,
    dtype: str,
    shape: int | Sequence[int],
    at: At = "labels",
    roots: Sequence[str | os.PathLike[str]] | None = None,
) -> tuple[Dataset, ColumnFile]:
    """A dataset that can get such a column. Raises: see column_writer."""
    dataset = open_dataset(path, roots)
    require_local(dataset.path)
    if dataset.viewed is not None:
        fix = f"pass its source, whose columns it has: {dataset.source}"
        raise ConfigError(dataset.path, "a subset", "a dataset with files of its own", fix)
    if dtype not in TYPES:
        raise unknown(f"column {name}: dtype", dtype, TYPES, "type")
    shape = (as_count(shape, "shape"),) if isinstance(shape, int) else tuple(as_count(one, "shape") for one in shape)
    column = ColumnFile(
        dtype=dtype,
        shape=shape,
        stream_fingerprint=dataset.stream_fingerprint,
        files=ItemFiles.absent(dataset.num_shards),
        created_by=CREATED_BY,
        extra={"at": at},
    )
    column.check(name, dataset.manifest)
    if name in {row.name for row in BATCH}:
        fix = "pass another NAME, which batches can have next to it"
        raise ConfigError(f"column {name}", f"{name!r}, an array of each batch", "a name that no array has", fix)
    if os.path.lexists(os.path.join(dataset.path, column_file(name))):
        raise taken(dataset.path, name)
    return dataset, column


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
        keep: Tokens that have values keep them; by default the last ones hold.
        roots: See `open_dataset`.

    Returns:
        The writer, a context manager with the methods `write`, `has` and `finish` (docs/distillation.md).

    Raises:
        ConfigError: For a column that is there already, or is being written with another type, and a loader that does
            not read the dataset.
        FormatError: The dataset is corrupt.
        ReadError: A file cannot be read or written.
    """
    dataset, column = begin(path, name, dtype, shape, at, roots)
    source = loader if loader is None or hasattr(loader, "blend") else open_blend(loader)
    writer = ColumnWriter(dataset, name, column, source, keep)
    if source is not None:
        writer.check_source()
    return writer


def _numpy(values: Any) -> Array:
    """An array of the batch, which may be a tensor on a device."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
