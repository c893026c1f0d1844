"""A column out of an array of numpy with an item for each token."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from conceptloader.columns.writer import column_writer
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.read.dataset import open_dataset
from conceptloader.format.spec.columnfile import TYPES, ColumnFile
from conceptloader.storage.reads import named, opened, read_at

_CHUNK = 1 << 16  # tokens
Path = str | os.PathLike[str]


def add_column(path: Path, name: str, file: Path, roots: Sequence[Path] | None = None) -> ColumnFile:
    """Make a column of a .npy with an item for each token, in the order of the dataset.

    Args:
        path: Directory of a finished dataset.
        name: Of the column.
        file: The .npy, of the column's type and shape.
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
    item = array.dtype.itemsize * int(np.prod(array.shape[1:]))
    tokens = open_dataset(path, roots).num_tokens
    if len(array) != tokens:
        fix = f"pass a .npy with {tokens} items, in the order of the dataset"
        raise ConfigError(file, f"{len(array):,} items", f"{tokens:,}, an item for each token", fix)
    writer = column_writer(path, name, array.dtype.str.lstrip("<|"), array.shape[1:], roots=roots)
    with opened(file) as descriptor:
        for first in range(0, tokens, _CHUNK):
            data = read_at(descriptor, array.offset + first * item, min(_CHUNK, tokens - first) * item, file)
            writer.put_tokens(first, np.frombuffer(data, array.dtype).reshape(-1, *array.shape[1:]), file)
    return writer.finish()


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
