"""An expression (trace/where.py) of one dataset: which documents it holds of, and which tokens."""

import json
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints
from conceptloader.trace.columns import DocumentColumns
from conceptloader.trace.concepts import Sources, with_ids
from conceptloader.trace.where import Expression, Intervals, Where, parse_where

_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "text"}


class TokenTest:
    """The tokens of which an expression of concepts holds. Raises: ConfigError that points at the character."""

    def __init__(self, dataset: Dataset, text: str) -> None:
        where = parse_where(text, "spans")
        if dataset.mode == "document":
            raise ConfigError(
                "spans",
                f"mode document in {dataset.path}, of which only whole documents can be selected",
                "another mode",
                "pass --where or --ids instead of --spans",
            )
        self._where = with_ids({"": dataset}, where)[""]
        self.sources = Sources(dataset, self._where)

    def __call__(self, first: int, last: int) -> Intervals:
        """Of tokens [first, last): the longest pieces."""
        (found,) = _intervals(self.sources, [self._where], first, last)
        return found


class DocumentTest:
    """The documents of which an expression holds. columns: those of the table that it needs.

    known: the columns that there are. Raises: ConfigError that points at the character; when asked, for a key of
    records whose value is of another type than the first one.
    """

    def __init__(self, dataset: Dataset, text: str, known: DocumentColumns) -> None:
        self._arrow, self._compute = need("pyarrow", "where"), need("pyarrow.compute", "where")
        self._expression = Expression(text)
        self.columns = {*self._expression.columns}
        self._keys = {name: self._kind(known.first_of(name)) for name in self.columns if known.record_of(name)}
        self._expression.check({**known.types, **self._keys}, known.keys_of)
        named = Where("or", tuple(self._expression.concepts.values()))
        self._tests = with_ids({"": dataset}, named)[""].parts
        self._sources = Sources(dataset, Where("or", self._tests)) if self._tests else None

    def __call__(self, table: Any, start: Ints, stop: Ints) -> Any:
        """True, false or null for each document, an Arrow array.

        table: Arrow columns of documents, of which each has tokens [start, stop), ascending.
        """
        for at, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
            if name in self._keys:
                table = table.set_column(at, name, self._values(name, column.to_pylist()))
            elif self._arrow.types.is_floating(column.type):  # to DuckDB, NaN is above all numbers
                no = self._compute.is_nan(column)
                table = table.set_column(at, name, self._compute.if_else(no, None, column))
        touched = np.zeros((len(self._tests), len(start)), bool)
        if self._sources is not None and len(start):
            found = _intervals(self._sources, [*self._tests], int(start[0]), int(stop[-1]))
            for k, (begin, end) in enumerate(found):
                begin = np.append(begin, np.iinfo(np.int64).max)
                touched[k] = (begin[np.searchsorted(end, start, side="right")] < stop) & (start < stop)
        for name, row in zip(self._expression.concepts, touched, strict=True):
            table = table.append_column(name, self._arrow.array(row))
        return self._expression(table)

    def _kind(self, value: Any) -> Any:
        kinds = {bool: self._arrow.bool_(), int: self._arrow.float64(), float: self._arrow.float64()}
        return kinds.get(type(value), self._arrow.string())

    def _values(self, name: str, texts: list[str | None]) -> Any:
        """Those of a key of records; lists and objects are JSON."""
        values = [None if text is None else json.loads(text) for text in texts]
        values = [text if isinstance(value, (list, dict)) else value for text, value in zip(texts, values, strict=True)]
        for value in values:
            if value is not None and self._kind(value) != self._keys[name]:
                wanted = next(word for kind, word in _KINDS.items() if self._kind(kind()) == self._keys[name])
                track, _, key = name.partition(".")
                fix = f"compare it as text: {track}->>'$.{key}'"
                expected = f"{wanted}, as in the first document that has this key"
                raise ConfigError(f"where: {name}", f"{value!r:.100} in a document", expected, fix)
        whole = all(value is None or (type(value) is int and abs(value) < 1 << 63) for value in values)
        number = self._keys[name] == self._arrow.float64()
        return self._arrow.array(values, self._arrow.int64() if number and whole else self._keys[name])


def _intervals(sources: Sources, tests: list[Where], first: int, last: int) -> list[Intervals]:
    """Tokens of [first, last) of which each of some expressions holds, in the longest pieces."""
    lows = range(first, last, sources.chunk)
    # One part of the data after the other: what is read of it serves all tests.
    parts = [[sources.holding(test, low, min(low + sources.chunk, last)) for test in tests] for low in lows]
    found = []
    for part in zip(*parts, strict=True):
        start, stop = (np.concatenate(column) for column in zip(*part, strict=True))
        apart = start[1:] != stop[:-1]  # else one piece: of two spans, or read in two chunks
        found.append((start[np.append(True, apart)[: len(start)]], stop[np.append(apart, True)[: len(stop)]]))
    return found
