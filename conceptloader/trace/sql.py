"""DuckDB over rows that are made while it reads them, and locked: a query reaches no file, no setting, no variable."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from tempfile import TemporaryDirectory
from typing import Any

from conceptloader.base.packages import need
from conceptloader.base.strict import unknown
from conceptloader.base.version import PAGES
from conceptloader.errors import ConfigError

_UNKNOWN = re.compile(r'(?:Referenced column "|column named "|Referenced table "|Table with name )([^"\s]+)')
EXTRA = "found no {} package, which answers in SQL: pip install 'conceptloader[ingest]'"


class Relation:
    """Rows that DuckDB pulls, each time that a query scans them.

    Args:
        types: The columns that there are, by Arrow type.
        rows: Makes some of them at a time, a mapping of columns, given the names that are needed; a column that is
            absent is null.
    """

    def __init__(
        self, types: Mapping[str, Any], rows: Callable[[Collection[str]], Iterable[Mapping[str, Any]]]
    ) -> None:
        self.types, self._rows, self.names = types, rows, list(types)
        self.error: Exception | None = None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        arrow = need("pyarrow", EXTRA.format("pyarrow"))
        schema = arrow.schema([(name, self.types[name]) for name in self.names])
        return arrow.RecordBatchReader.from_batches(schema, self._batches(arrow, schema)).__arrow_c_stream__()

    def _batches(self, arrow: Any, schema: Any) -> Iterator[Any]:
        try:
            for some in self._rows(self.names):
                size = len(next(iter(some.values())))
                none = (arrow.nulls(size, field.type) for field in schema if field.name not in some)
                columns = [
                    _array(arrow, some[one.name], one.type) if one.name in some else next(none) for one in schema
                ]
                yield arrow.RecordBatch.from_arrays(columns, schema=schema)
        except Exception as error:  # DuckDB would make another one of it
            self.error = error
            raise


def _array(arrow: Any, column: Any, kind: Any) -> Any:
    column = column if isinstance(column, arrow.Array) else arrow.array(column, None if len(column) else kind)
    return column if column.type == kind else column.cast(kind)


def ask(text: str, tables: Mapping[str, Any], option: str = "query") -> Iterator[Any]:
    """What one SELECT gives, as Arrow record batches.

    Args:
        text: The query, in SQL of DuckDB.
        tables: By name what it may ask: a Relation, or an Arrow table.
        option: What the text is called in messages.

    Raises:
        ConfigError: With what DuckDB says of the query; other errors are those of the rows.
    """
    arrow, duckdb = (need(name, f"{option}: " + EXTRA.format(name)) for name in ("pyarrow", "duckdb"))
    relations = {name: one for name, one in tables.items() if isinstance(one, Relation)}
    with TemporaryDirectory(prefix="conceptloader-") as spill:
        # One thread makes rows as they are read; what takes more than this memory goes to files.
        settings = {
            "threads": 1, "python_enable_replacements": "false", "temp_directory": spill, "memory_limit": "2GB",
        }  # fmt: skip
        with duckdb.connect(":memory:", config=settings) as database:
            database.execute("SET enable_progress_bar = false; SET TimeZone = 'UTC'")
            try:
                _narrow(database, text, relations, option)
                for name, one in tables.items():
                    database.register(name, one)
                database.execute("SET enable_external_access = false; SET lock_configuration = true")
                found = arrow.RecordBatchReader.from_stream(database.sql(text))
                schema = arrow.schema([(one.name, _plain(arrow, one.type)) for one in found.schema])
                yield arrow.RecordBatch.from_pylist([], schema=schema)  # which says the columns, where no row is found
                for batch in found:
                    yield batch.cast(schema)
            except (duckdb.Error, arrow.ArrowException, OSError) as error:
                made = next((one.error for one in relations.values() if one.error is not None), None)
                columns = {name: getattr(one, "types", None) or one.column_names for name, one in tables.items()}
                raise made or _said(str(error), columns, option) from error


def parsed(database: Any, text: str, option: str) -> dict[str, Any]:
    """The tree that DuckDB makes of a query. Raises: ConfigError unless it is one SELECT."""
    ((tree,),) = database.execute("SELECT json_serialize_sql($1)", [text]).fetchall()
    found: dict[str, Any] = json.loads(tree)
    if found["error"] and found.get("error_type") == "not implemented":
        raise ConfigError(option, f"{text:.100}", "one SELECT", "begin it with SELECT, FROM or WITH")
    if found["error"]:
        raise _said(f"{found['error_message']}", {}, option)
    if len(found["statements"]) != 1:
        raise ConfigError(option, f"{len(found['statements'])} statements", "one SELECT", "ask one after the other")
    return found


def _narrow(database: Any, text: str, relations: Mapping[str, Relation], option: str) -> None:
    """Make of the columns only those that a query may mean. Raises: ConfigError unless it is one SELECT."""
    words = {one.lower() for one in _strings(parsed(database, text, option))}
    for name, one in relations.items():
        whole = {"star", "natural", "pivot", f"column {name}"} & words
        one.names = [column for column in one.types if whole or column.lower() in words] or [*one.types][:1]


def _strings(node: Any) -> Iterator[str]:
    """All texts in a tree of JSON; of a column also with a mark, since a table's name may be one, for all it has."""
    if isinstance(node, dict):
        yield from (f"column {name}" for name in node.get("column_names", ())[-1:])
        node = [*node.values()]
    if isinstance(node, list):
        for one in node:
            yield from _strings(one)
    elif isinstance(node, str):
        yield node


def _plain(arrow: Any, kind: Any) -> Any:
    """The type of sums of integers, which to DuckDB have 128 bits."""
    return arrow.int64() if arrow.types.is_decimal(kind) and kind.precision == 38 and not kind.scale else kind


def _said(message: str, columns: Mapping[str, Collection[str]], option: str) -> ConfigError:
    found, lines = message.strip().partition("\n")[0], message.strip().partition("\n\n")[2]
    if name := _UNKNOWN.search(message):
        known = {*columns, *(column for some in columns.values() for column in some)}
        error = unknown(option, name[1], known, "column or table")
        if not error.fix and "metadata" in known:
            fix = f"write (metadata->>'{name[1]}') if this is a key of the metadata"
            error = unknown(option, name[1], known, "column or table", fix)
        assert isinstance(error, ConfigError)
        return error
    return ConfigError(option, found, f"SQL of DuckDB, see {PAGES}/queries.md" + f"\n{lines}" * bool(lines))
