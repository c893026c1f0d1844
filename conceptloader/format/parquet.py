"""Parquet files of the package itself: the same bytes however their rows come, pages compared with a checksum.

Those of a build's input are read in ingest/records/table.py.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.storage.reads import named

_ROW_GROUP = 1 << 17
_PROBLEM = "parquet: found no pyarrow package, which reads and writes such files"


def write_parquet(batches: Iterable[Any], path: str, row_group: int = _ROW_GROUP, **options: Any) -> int:
    """Write record batches of one schema, the same bytes however the rows are spread over them.

    row_group: rows of each group, but for the last. options: of pyarrow's ParquetWriter. Returns: rows.

    Raises: ConfigError without any batch, or without pyarrow.
    """
    arrow, parquet = need("pyarrow", _PROBLEM), need("pyarrow.parquet", _PROBLEM)
    writer: Any = None
    rows, kept = 0, []
    for batch in chain(batches, [None]):
        kept += [] if batch is None else [batch]
        if not kept and writer is None:
            raise ConfigError(path, "no record batch", "at least one record batch", "pass a record batch in `batches`")
        writer = writer or parquet.ParquetWriter(path, kept[0].schema, compression="zstd", **options)
        held = sum(some.num_rows for some in kept)
        if held >= row_group or batch is None:
            table = arrow.Table.from_batches(kept, writer.schema).combine_chunks()
            whole = held if batch is None else held // row_group * row_group
            for at in range(0, whole, row_group):
                writer.write_table(table.slice(at, min(row_group, whole - at)).combine_chunks())
            rows, kept = rows + whole, table.slice(whole).to_batches()
    writer.close()
    return rows


class SortedParquet:
    """A parquet file whose rows are sorted by its first column, opened.

    Every page is compared with its checksum, and what says where the pages are with `footer`, which `footer_checksum`
    gave when it was written. remedy: what to do about a corrupt file.

    Raises: FormatError for a corrupt file, ReadError; ConfigError without pyarrow.
    """

    def __init__(self, path: str, footer: str, remedy: str) -> None:
        self._path, self._remedy, self._arrow = path, remedy, need("pyarrow", _PROBLEM)
        found = footer_checksum(path, remedy)
        if found != footer:
            raise FormatError(path, f"a footer of checksum {found}", footer, remedy)
        with self._read():
            self._file = need("pyarrow.parquet", _PROBLEM).ParquetFile(path, page_checksum_verification=True)
        groups = range(self._file.metadata.num_row_groups)
        self._groups = [group for group in groups if self._file.metadata.row_group(group).num_rows]

    def columns(self, *names: str, key: int | None = None) -> list[NDArray[np.int64]]:
        """Columns, int64 [n] each: of all rows, or of those that have `key` in the first column."""
        first = self._file.schema_arrow.names[0]
        with self._read():
            if key is None:
                table = self._file.read_row_groups(self._groups, [*names], use_threads=False)
            else:
                low = bisect_left(self._groups, key, key=lambda group: self._bounds(group).max)
                high = bisect_right(self._groups, key, key=lambda group: self._bounds(group).min)
                table = self._file.read_row_groups(self._groups[low:high], [first, *names], use_threads=False)
        chosen = slice(None) if key is None else table[first].to_numpy() == key
        return [table[name].to_numpy()[chosen].astype(np.int64) for name in names]

    def _bounds(self, group: int) -> Any:
        """The least and the largest value of the first column."""
        return self._file.metadata.row_group(group).column(0).statistics

    @contextmanager
    def _read(self) -> Iterator[None]:
        try:
            yield
        except (OSError, self._arrow.ArrowInvalid) as error:  # OSError without a number is damage, too
            if getattr(error, "errno", None) is not None:
                raise ReadError(
                    self._path,
                    f"cannot be read: {error}",
                    fix=f"run `chmod u+r {self._path}`, or check its disk or mount",
                    errno=error.errno,
                ) from error
            raise FormatError(self._path, str(error), "what was written", self._remedy) from error


def footer_checksum(path: str, remedy: str = "write it again") -> str:
    """XXH3-64, as hexadecimal digits, of what says where the pages of a parquet file are.

    Pages have checksums of their own, if they were written with such. Raises: FormatError, ReadError.
    """
    with named(path, "read"), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little") + 8
        if not 8 < length <= size:
            raise FormatError(
                path, f"{size} bytes that do not end as a parquet file", "a complete Parquet file", remedy
            )
        file.seek(size - length)
        return xxhash.xxh3_64_hexdigest(file.read(length))
