"""A column out of an array of numpy with an item for each token, copied or left where it is."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash

from conceptloader.columns.parts import Parts, taken
from conceptloader.columns.values import as_stored
from conceptloader.columns.writer import ColumnWriter, begin, require_fitting
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.spec.columnfile import TYPES, ColumnFile, ItemFiles, column_file
from conceptloader.storage.durable import write_file
from conceptloader.storage.reads import named, opened, read_at
from conceptloader.storage.sample import open_sample

_CHUNK = 1 << 16  # tokens
Path = str | os.PathLike[str]


def add_column(
    path: Path, name: str, file: Path, in_place: bool = False, roots: Sequence[Path] | None = None
) -> ColumnFile:
    """Make a column of a .npy with an item for each token, in the order of the dataset.

    Args:
        path: Directory of a finished dataset.
        name: Of the column.
        file: The .npy, of the column's type and shape.
        in_place: It is the column, and has to stay where it is.
        roots: See `open_dataset`.

    Returns:
        What NAME.column.json says.

    Raises:
        ConfigError: As ColumnWriter raises.
        InputError: A file that is no such array.
        FormatError: The dataset is corrupt.
        ReadError: A file cannot be read or written.
    """
    file = os.fspath(file)
    array = _head(file)
    stored, shape = array.dtype.str.lstrip("<|"), array.shape[1:]
    dataset, column = begin(path, name, stored, shape, roots=roots)
    tokens, item, whole = dataset.num_tokens, column.itemsize, xxhash.xxh3_64()
    if len(array) != tokens:
        fix = f"pass a .npy with {tokens} items, in the order of the dataset"
        raise ConfigError(file, f"{len(array):,} items", f"{tokens:,}, an item for each token", fix)
    parts = Parts(dataset.path, name)
    if in_place and os.path.isdir(parts.path):
        fix = f"pass --finish, or remove what was written: conceptloader column {dataset.path} {name} --remove"
        raise ConfigError(f"column {name}", "a column that is being written", "a new name", fix)
    relative = os.path.relpath(os.path.abspath(file), dataset.path)
    dataset.files.roots.check([relative] if in_place else [], "--in-place")
    writer = None if in_place else ColumnWriter(dataset, name, column)
    with opened(file) as descriptor:
        whole.update(read_at(descriptor, 0, array.offset, file))
        for first in range(0, tokens, _CHUNK):
            data = read_at(descriptor, array.offset + first * item, min(_CHUNK, tokens - first) * item, file)
            whole.update(data)
            values = np.frombuffer(data, array.dtype).reshape(-1, *shape)
            require_fitting(as_stored(values, stored, 1, file), column, file, first)
            if writer is not None:
                writer.put_tokens(first, values, file)
        if writer is not None:
            return writer.finish()
        size = array.offset + tokens * item
        sample = open_sample(descriptor, size, file)
    shards = dataset.num_shards
    files = ItemFiles(
        size=np.full(shards, size),
        checksum=[whole.hexdigest()] * shards,
        sample=[sample] * shards,
        path=[relative] * shards,
        offset=array.offset + np.array(dataset.shard_starts[:-1]) * item,
    )
    column = replace(column, files=files)
    if not write_file(os.path.join(dataset.path, column_file(name)), column.dump(), exclusive=True):
        raise taken(dataset.path, name)
    return column


def _head(file: str) -> "np.memmap[Any, Any]":
    """A whole array of a column's type, which is not read through this. Raises: InputError."""
    with named(file, "read"):
        try:
            array: np.memmap[Any, Any] = np.load(file, mmap_mode="r")
        except (ValueError, EOFError) as error:
            fix = f"copy {file} again, or write it with numpy.save"
            raise InputError(file, f"no whole .npy file ({error})", "an array", fix) from error
    if not array.flags.c_contiguous or array.dtype.str.lstrip("<|") not in TYPES or array.ndim not in (1, 2, 3):
        order = "" if array.flags.c_contiguous else ", in Fortran order"
        rule, fix = "little-endian numbers, (tokens, ...) in C order", "write it with numpy.ascontiguousarray"
        raise InputError(file, f"{array.dtype} of shape {list(array.shape)}{order}", rule, fix)
    return array
