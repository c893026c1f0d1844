"""Parquet files of others: opened, refused where their rows are not all of them; types and lists in them."""

import os
import re
from functools import lru_cache
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.errors import InputError
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.storage.reads import named

_MAGIC = b"PAR1"
_SIGNATURE = 28  # bytes: nonce and tag of AES-GCM


def open_parquet(path: str) -> Any:
    """A pyarrow ParquetFile that reads a page at a time, not a column chunk."""
    problem = f"{path}: found a parquet file but no pyarrow package to read it"
    arrow, parquet = need("pyarrow", problem), need("pyarrow.parquet", problem)
    try:
        file = parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)
        _check_plain(path, file.metadata.serialized_size)
        names = file.schema_arrow.names
    except (arrow.ArrowException, OSError) as error:
        fix = f"write {path} again, or remove it"
        raise InputError(path, f"bytes that cannot be read as parquet ({error})", "a whole file", fix) from error
    if len(set(names)) < len(names):
        raise InputError(
            path, f"columns {', '.join(names)}", "each name once", f"rename one of these columns in {path}"
        )
    return file


def _check_plain(path: str, size: int) -> None:
    """Raises: OSError for encrypted columns. pyarrow ends the process where it is asked for what their metadata say.

    A footer in plain text ends with a signature then. size: of the footer without it.
    """
    with open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        if int.from_bytes(file.read(4), "little") == size + _SIGNATURE:
            raise OSError("it has encrypted columns; decrypt it first")


def _check_single(path: str, meta: Any) -> None:
    """No other file stands before this one in it, whose rows the footer does not know, as after `cat a b`.

    Positions in the footer count from the beginning of the last file. So it begins within the first bytes, as many
    as follow its last column chunk, which a writer may use for indexes, bloom filters and padding.

    Raises: InputError.
    """
    groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    end = max((_begin(chunk) + chunk.total_compressed_size for chunk in chunks), default=len(_MAGIC))
    with open(path, "rb") as file:
        size = file.seek(-8, os.SEEK_END)
        free = size - int.from_bytes(file.read(4), "little") - end
        file.seek(0)
        head = file.read(max(0, free) + len(_MAGIC))
    for found in re.finditer(_MAGIC, head):
        at = found.start()
        before = at + len(_MAGIC) <= free and _is_footer(head[: at + len(_MAGIC)])
        if at and (at == free or before):
            fix = "pass the files that were joined, one by one, as inputs"
            raise InputError(
                path, f"several parquet files in one (byte {at})", "one file, whose footer has all rows", fix
            )


def _begin(chunk: Any) -> int:
    return min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)), default=0)


def _is_footer(data: bytes) -> bool:
    """Whether these bytes end as a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    length = int.from_bytes(data[-8:-4], "little") + 8
    if not 8 < length <= len(data) - len(_MAGIC):
        return False
    try:
        pq.read_metadata(pa.BufferReader(_MAGIC + data[-length:]))
    except (pa.ArrowException, OSError):
        return False
    return True


def row_groups(path: str) -> tuple[tuple[int, int], ...]:
    """(stored bytes, rows) of each row group. Raises: InputError, ReadError."""
    with named(path, "read"):
        found = os.stat(path)
    return _row_groups(path, found.st_size, found.st_mtime_ns, found.st_ino)


@lru_cache(maxsize=1 << 16)
def _row_groups(path: str, *_: int) -> tuple[tuple[int, int], ...]:
    with open_parquet(path) as file:
        meta = file.metadata
        _check_single(path, meta)
        groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
        columns = [[group.column(i) for i in range(group.num_columns)] for group in groups]
        sizes = [max(1, sum(chunk.total_compressed_size for chunk in chunks)) for chunks in columns]
        return tuple(zip(sizes, (group.num_rows for group in groups), strict=True))


def is_text(kind: Any) -> bool:
    """Whether a type of pyarrow is one of texts."""
    import pyarrow.types as types

    return any(is_kind(kind) for is_kind in (types.is_string, types.is_large_string, types.is_string_view))


def is_list(kind: Any) -> bool:
    """Whether a type of pyarrow is one of lists."""
    import pyarrow.types as types

    return any(is_kind(kind) for is_kind in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def list_parts(column: Any) -> tuple[Any, Ints]:
    """(values of all lists, offsets of each list) of a column of lists; null is an empty one."""
    import pyarrow.compute as pc

    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return column.flatten(), offsets_of(lengths.astype(np.int64))
