"""DuckDB as what joins and sorts: a database of this process, in memory, on disk where that takes more."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from conceptloader.base.packages import need
from conceptloader.storage.durable import temporary_name

PROBLEM = "found no package to sort and join rows with"


@contextmanager
def database(directory: str, memory: str, failed: Callable[[str], Exception]) -> Iterator[Any]:
    """A database that takes `memory`, and for more than that files in `directory`, which are removed at the end.

    failed: makes the error, of what DuckDB says, that is raised where the block cannot do something with it.
    Raises: ConfigError without DuckDB.
    """
    spill, duckdb = temporary_name(os.path.join(directory, "spill")), need("duckdb", PROBLEM)
    settings = {
        "memory_limit": memory, "threads": 1, "temp_directory": spill, "preserve_insertion_order": False,
    }  # fmt: skip
    try:
        with duckdb.connect(config=settings) as opened:
            opened.execute("SET enable_progress_bar = false")  # which notebooks and `python -c` have on their stdout
            yield opened
    except duckdb.Error as error:
        raise failed(str(error).splitlines()[0]) from error
    finally:
        shutil.rmtree(spill, ignore_errors=True)


def load(opened: Any, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
    """Make a table with these columns, as SQL has them. rows: some at a time, an array or list for each column."""
    arrow = need("pyarrow", PROBLEM)
    names = [column.split()[0] for column in columns.split(", ")]
    opened.execute(f"CREATE TABLE {table} ({columns})")
    for some in rows:  # here, not pulled by DuckDB, so that an error in them stays what it is
        opened.register("batch", arrow.table(dict(zip(names, some, strict=True))))
        opened.execute(f"INSERT INTO {table} FROM batch")
