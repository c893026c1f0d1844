"""Columns out of files: rows of documents in Parquet, and arrays of numpy, copied or left where they are."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import numpy as np
import xxhash

from conceptloader.base.packages import need
from conceptloader.base.strict import unknown
from conceptloader.columns.unfinished import Plan, Unfinished, taken
from conceptloader.columns.values import Array, as_stored
from conceptloader.columns.writer import ColumnWriter, begin, require_fitting
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columnfile import TYPES, ColumnFile, ItemFiles, column_file
from conceptloader.storage.durable import write_file
from conceptloader.storage.reads import named, opened
from conceptloader.storage.sample import open_sample

_TOKENS = 1 << 16
Path = str | os.PathLike[str]


def add_column(
    path: Path,
    name: str,
    files: Sequence[Path],
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    *,
    value: str | None = None,
    key: str = "id",
    in_place: bool = False,
    partial: bool = False,
    roots: Sequence[Path] | None = None,
) -> ColumnFile:
    """Make a column of files: one .npy with an item for each token, or Parquet with a list for each document.

    Args:
        path: Directory of a finished dataset.
        name: Of the column.
        files: The .npy, or files of Parquet; documents may stand in any order.
        dtype: Of the column; by default that of the files.
        shape: Of an item; by default that of the files: with Parquet of lists of lists of a fixed size.
        value: Column of Parquet with the lists, by default `name`.
        key: Column of Parquet with the documents' ids, or with their numbers: `document`.
        in_place: The .npy is the column, and has to stay where it is.
        partial: Whether documents may be missing.
        roots: See `open_dataset`.

    Returns:
        What NAME.column.json says.

    Raises:
        ConfigError: As ColumnWriter raises, and for unknown documents.
        InputError: A file that is no such array or table.
        FormatError: The dataset is corrupt.
        ReadError: A file cannot be read or written.
    """
    names = [os.fspath(file) for file in files]
    array = len(names) == 1 and names[0].endswith(".npy")
    if not array and (in_place or not names or any(file.endswith(".npy") for file in names)):
        rule = "one .npy" if in_place else "one .npy, or files of Parquet"
        raise ConfigError(
            f"column {name}",
            ", ".join(names[:3]) or "no files",
            rule,
            "pass one .npy with an item for each token, or Parquet files",
        )
    source = _Npy(names[0]) if array else _Tables(names, key, value or name)
    shape = source.shape if shape is None else shape
    dataset, plan = begin(path, name, dtype or source.dtype, shape, roots=roots)
    if isinstance(source, _Npy):
        source.check(dataset.num_tokens)
        if in_place and os.path.isdir(Unfinished(dataset.path, name).path):
            fix = f"pass --finish, or remove what was written: conceptloader column {dataset.path} {name} --remove"
            raise ConfigError(f"column {name}", "a column that is being written", "a new name", fix)
        if in_place:
            return _left_in_place(dataset, name, plan, source)
    with ColumnWriter(dataset, name, plan) as writer:
        for start, values, where in source.items(dataset):
            writer.put(start, values, where)
        return writer.finish(partial)


class _Npy:
    """The head of an array: tokens, then the shape of an item."""

    def __init__(self, path: str) -> None:
        self.path = path
        with named(path, "read"), open(path, "rb") as file:
            try:
                version = np.lib.format.read_magic(file)
                read: Any = getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}")
                whole, fortran, self.stored = read(file)
            except (ValueError, AttributeError) as error:
                raise InputError(path, f"no .npy file ({error})", "an array", "write it with numpy.save") from error
            self.offset, self.size = file.tell(), os.fstat(file.fileno()).st_size
        self.tokens: int = whole[0] if whole else 0
        self.shape: tuple[int, ...] = tuple(whole[1:])
        self.dtype = self.stored.str.lstrip("<|")
        if fortran or self.dtype not in TYPES or len(whole) not in (1, 2, 3):
            found = f"{self.stored} of shape {list(whole)}{', in Fortran order' if fortran else ''}"
            raise InputError(
                path,
                found,
                "little-endian numbers, (tokens, ...) in C order",
                "write it again: numpy.save(FILE, numpy.ascontiguousarray(array))",
            )
        expected = self.offset + self.stored.itemsize * int(np.prod(whole))
        if self.size != expected:
            raise InputError(
                path,
                f"{self.size} bytes",
                f"{expected}, as its head says",
                f"copy {path} again, or write it again with numpy.save",
            )

    def check(self, tokens: int) -> None:
        """Raise ConfigError for another number of tokens than the dataset's."""
        if self.tokens != tokens:
            fix = f"pass a .npy with {tokens} items, in the order of the dataset"
            raise ConfigError(self.path, f"{self.tokens:,} items", f"{tokens:,}, an item for each token", fix)

    def items(self, _: Dataset) -> Iterator[tuple[int, Array, str]]:
        """(token, items from there on, what they are)."""
        for first in range(0, self.tokens, _TOKENS):
            yield first, self.read(first, min(first + _TOKENS, self.tokens)), self.path

    def read(self, first: int, stop: int) -> Array:
        """Items [first, stop)."""
        item = int(np.prod(self.shape))
        at = self.offset + first * item * self.stored.itemsize
        with named(self.path, "read"):
            flat: Array = np.fromfile(self.path, self.stored, (stop - first) * item, offset=at)
        return flat.reshape(stop - first, *self.shape)


def _left_in_place(dataset: Dataset, name: str, plan: Plan, source: _Npy) -> ColumnFile:
    if (plan.dtype, plan.shape) != (source.dtype, source.shape):
        found, rule = f"{plan.dtype} {list(plan.shape)}", f"{source.dtype} {list(source.shape)}, as the file has"
        raise ConfigError("--in-place", found, rule, "omit --in-place, which copies the file")
    relative = os.path.relpath(os.path.abspath(source.path), dataset.path)
    dataset.files.roots.check([relative], "--in-place")
    whole = xxhash.xxh3_64()
    with named(source.path, "read"), open(source.path, "rb") as file:
        whole.update(file.read(source.offset))
    for first, items, path in source.items(dataset):
        require_fitting(as_stored(items, plan.dtype, 1, path), plan, path, first)
        whole.update(np.ascontiguousarray(items).data)
    with opened(source.path) as descriptor:
        sample = open_sample(descriptor, source.size, source.path)
    shards, column = dataset.num_shards, plan.described(dataset.num_shards)
    files = ItemFiles(
        size=np.full(shards, source.size),
        checksum=[whole.hexdigest()] * shards,
        sample=[sample] * shards,
        path=[relative] * shards,
        offset=source.offset + np.array(dataset.shard_starts[:-1]) * column.itemsize,
    )
    column = replace(column, files=files)
    column.check(name, dataset.manifest)
    if not write_file(os.path.join(dataset.path, column_file(name)), column.dump(), exclusive=True):
        raise taken(dataset.path, name)
    return column


class _Tables:
    """Files of Parquet with a list of items for each document."""

    def __init__(self, files: Sequence[str], key: str, value: str) -> None:
        self._files, self._key, self._value = files, key, value
        self._arrow: Any = need("pyarrow", "column: found no pyarrow package, which reads Parquet")
        need("pyarrow.parquet", "column")
        schemas = [self._open(file).schema_arrow for file in files]
        for file, schema in zip(files, schemas, strict=True):
            for column in (key, value):
                if column not in schema.names:
                    raise unknown(file, column, schema.names, "column")
            if schema.field(value).type != schemas[0].field(value).type:
                found = schema.field(value).type
                raise InputError(
                    f"{file}: {value}",
                    str(found),
                    f"{schemas[0].field(value).type}, as {files[0]} has",
                    f"write {file} again with the type that {files[0]} has",
                )
        self.dtype, self.shape = self._type(schemas[0].field(value).type)

    def _open(self, file: str) -> Any:
        with named(file, "read"):
            try:
                return self._arrow.parquet.ParquetFile(file)
            except self._arrow.ArrowInvalid as error:
                raise InputError(
                    file,
                    f"no Parquet ({error})",
                    "Parquet files, or a single .npy file",
                    "write Parquet with pyarrow, or a .npy with numpy.save",
                ) from error

    def _type(self, kind: Any) -> tuple[str, tuple[int, ...]]:
        """(dtype, shape) of the items of lists."""
        shape: list[int] = []
        types = self._arrow.types
        lists = types.is_list(kind) or types.is_large_list(kind)
        item = kind.value_type if lists else kind
        while types.is_fixed_size_list(item):
            shape.append(item.list_size)
            item = item.value_type
        if not lists or not (types.is_integer(item) or types.is_floating(item)):
            rule = "lists of numbers, or of lists of a fixed size"
            raise InputError(
                f"{self._files[0]}: {self._value}", str(kind), rule, f"cast {self._value} to pyarrow.list_(TYPE, K)"
            )
        return np.dtype(item.to_pandas_dtype()).str.lstrip("<|"), tuple(shape)

    def items(self, dataset: Dataset) -> Iterator[tuple[int, Array, str]]:
        """(first token, items, what they are) of each document. Raises: ConfigError for one that is not there."""
        for file in self._files:
            row = 0
            for batch in self._open(file).iter_batches(64, columns=[self._key, self._value]):
                keys, lists = batch[self._key].to_pylist(), batch[self._value]
                if lists.null_count:
                    raise InputError(
                        f"{file}: {self._value}", "null", "a list for each row", f"drop the rows without {self._value}"
                    )
                flat = lists.flatten()
                # Before each level: flattening drops what is null, and all values after it would move.
                while not flat.null_count and self._arrow.types.is_fixed_size_list(flat.type):
                    flat = flat.flatten()
                if flat.null_count:
                    raise InputError(
                        f"{file}: {self._value}",
                        "null in a list",
                        "numbers",
                        f"fill the nulls of {self._value}, or drop these rows",
                    )
                values = flat.to_numpy(zero_copy_only=False).reshape(-1, *self.shape)
                offsets = lists.offsets.to_numpy()
                for number, (low, high), where in zip(
                    self._numbers(dataset, keys, file, row), pairwise((offsets - offsets[0]).tolist()), count(row)
                ):
                    start, stop = dataset.document_range(number)
                    place = f"{file}, row {where}, document {number}"
                    if high - low != stop - start:
                        fix = (
                            f"write a list of {stop - start} items there: one for each token, the end of text included"
                        )
                        raise ConfigError(place, f"{high - low} items", f"{stop - start}, one for each token", fix)
                    if low < high:
                        yield start, values[low:high], place
                row += len(keys)

    def _numbers(self, dataset: Dataset, keys: list[Any], file: str, row: int) -> list[int]:
        """The numbers of documents."""
        if self._key == "document":
            numbers = keys
        else:
            found = dataset.find_documents(list(map(str, keys)))
            numbers = [found[str(key)][0] if len(found[str(key)]) == 1 else None for key in keys]
        for number, key, at in zip(numbers, keys, count(row)):
            if type(number) is not int or not 0 <= number < dataset.num_documents:
                known = 0 if self._key == "document" else len(dataset.find_document(str(key)))
                said = f"{known} documents with the id {key!r}" if known else f"no document {key!r}"
                raise ConfigError(
                    f"{file}, row {at}",
                    said,
                    f"a document in {dataset.path}",
                    "name the document by its number: --key document",
                )
        return numbers
