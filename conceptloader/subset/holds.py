"""An expression (trace/where.py) of one dataset: which documents it holds of, and which tokens."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints
from conceptloader.trace.columns import DocumentColumns
from conceptloader.trace.concepts import Sources, with_ids
from conceptloader.trace.where import OPERATORS, Intervals, Where, parse_where

_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "text in single quotes"}
_COMPUTE = {"=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


class TokenTest:
    """The tokens of which an expression of concepts holds. Raises: ConfigError that points at the character."""

    def __init__(self, dataset: Dataset, text: str) -> None:
        where = parse_where(text, "spans")
        column = next(where.tests("column"), None)
        if column is not None:
            expected = "concepts of tokens, TRACK:CONCEPT; use --where for columns"
            raise column.wrong(f"the column {column.name!r}", expected)
        if dataset.mode == "document":
            raise ConfigError("spans", f"{dataset.path} has mode document: only whole documents are selected")
        self._where = with_ids({"": dataset}, where)[""]
        self.sources = Sources(dataset, self._where)

    def __call__(self, first: int, last: int) -> Intervals:
        """Of tokens [first, last): the longest pieces."""
        (found,) = _intervals(self.sources, [self._where], first, last)
        return found


class DocumentTest:
    """The documents of which an expression holds. columns: those of the table that it needs.

    known: the columns that there are. Raises: ConfigError that points at the character; when asked, for a key of
    records whose value is of another type than what it is compared with.
    """

    def __init__(self, dataset: Dataset, text: str, known: DocumentColumns) -> None:
        self._arrow, self._compute = need("pyarrow", "where"), need("pyarrow.compute", "where")
        self._where = with_ids({"": dataset}, parse_where(text))[""]
        self._keys: set[str] = set()  # of records
        self.columns = {one.name for one in self._where.tests("column")}
        for one in self._where.tests("column"):
            self._check(one, known)
        self._tests = [*self._where.tests("concept")]
        self._sources = Sources(dataset, self._where) if self._tests else None

    def __call__(self, table: Any, start: Ints, stop: Ints) -> NDArray[np.bool_]:
        """table: Arrow columns of documents, of which each has tokens [start, stop), ascending."""
        touched: dict[Where, NDArray[np.bool_]] = {}
        if self._sources is not None and len(start):
            found = _intervals(self._sources, self._tests, int(start[0]), int(stop[-1]))
            for test, (begin, end) in zip(self._tests, found, strict=True):
                begin = np.append(begin, np.iinfo(np.int64).max)
                touched[test] = (begin[np.searchsorted(end, start, side="right")] < stop) & (start < stop)
        return self._where.rows(lambda one: touched[one] if one.operator == "concept" else self._holds(one, table))

    def _holds(self, test: Where, table: Any) -> NDArray[np.bool_]:
        column, compute = table[test.name], self._compute
        if test.name in self._keys and test.values:
            return self._holds_of_json(test, column.to_pylist())
        if self._arrow.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if test.compare == "null":
            return np.asarray(column.is_null())
        compare = getattr(compute, _COMPUTE.get(test.compare, "equal"))
        found = [np.asarray(compute.fill_null(compare(column, value), False)) for value in test.values]
        any_of: NDArray[np.bool_] = np.logical_or.reduce(found)
        return any_of

    def _holds_of_json(self, test: Where, texts: list[str | None]) -> NDArray[np.bool_]:
        values = np.empty(len(texts), object)
        values[:] = [None if one is None else json.loads(one) for one in texts]
        known = np.array([one is not None for one in values], bool)
        wanted = _KINDS[type(test.values[0])]
        for value in values[known]:
            if _KINDS.get(type(value)) != wanted:
                raise ConfigError(
                    f"where: {test.name}", f"{value!r:.100} in a document", wanted, "or write it in --sql"
                )
        compare = OPERATORS.get(test.compare, np.equal)
        known[known] = np.logical_or.reduce([compare(values[known], one).astype(bool) for one in test.values])
        return known

    def _check(self, test: Where, known: DocumentColumns) -> None:
        if known.record_of(test.name) is not None:
            self._keys.add(test.name)
            wanted = _KINDS[type(test.values[0])] if test.values else ""
        elif test.name not in known.types:
            names = ", ".join(sorted(known.types))
            raise test.wrong(f"an unknown column {test.name!r}", f"one of {names}")
        elif test.compare == "null":
            return
        else:
            wanted = self._kind(test, known.types[test.name])
        for value in test.values:
            if _KINDS[type(value)] != wanted:
                raise test.wrong(f"{value!r} for the column {test.name!r}", wanted)

    def _kind(self, test: Where, kind: Any) -> str:
        """What values of an Arrow type are compared with."""
        types = self._arrow.types
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_nested(kind):
            expected = f"{test.name}:CONCEPT, if it is a track of concepts; for the rest there is --sql"
            raise test.wrong(f"the column {test.name!r} of lists", expected)
        if types.is_boolean(kind):
            return _KINDS[bool]
        if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
            return _KINDS[int]
        if types.is_string(kind) or types.is_large_string(kind):
            return _KINDS[str]
        raise test.wrong(f"the column {test.name!r} of type {kind}", "numbers or text, or --sql")


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
