"""The SQL expressions of `subset`, which DuckDB evaluates: a small part of SQL; everything else is rejected before.

docs/subsets.md lists it. Errors point at the column.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from conceptloader.base.packages import need
from conceptloader.base.strict import unknown
from conceptloader.errors import ConfigError

_CLASSES = {"COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN", "FUNCTION", "CASE"}
FUNCTIONS = (
    "abs", "floor", "ceil", "round", "least", "greatest", "lower", "upper", "length", "len", "contains", "starts_with",
    "ends_with", "substring", "regexp_matches", "list_contains", "list_has_any", "list_has_all",
)  # fmt: skip
_OPERATORS = {"+", "-", "*", "/", "//", "%", "||", "~~", "!~~", "~~*", "!~~*", "->>", "->", "list_value"}
_BEFORE = "SELECT (\n"


class Expression:
    """An expression over columns of documents, checked.

    columns: those that it names. kind: what it gives, an Arrow type.

    known: the columns that there are, by Arrow type. option: its name in messages. Raises: ConfigError.
    """

    def __init__(self, text: str, known: Mapping[str, Any], option: str = "where") -> None:
        self._duckdb = need("duckdb", f"{option}: found no duckdb package, which evaluates it")
        self.text, self._option = re.sub(r"\s", " ", text), option
        # One thread: rows stay in their order. Nothing but what is registered can be read.
        settings = {"enable_external_access": "false", "threads": "1"}
        self._database = self._duckdb.connect(":memory:", config=settings)
        self.columns = self._check(known)
        arrow = need("pyarrow", f"{option}: found no pyarrow package, which makes the tables")
        empty = arrow.table({name: arrow.array([], known[name]) for name in self.columns or list(known)[:1]})
        self._asked(empty, lambda query: self._database.execute(query).fetchall())  # whose errors have places
        self.kind = self(empty).type

    def __call__(self, table: Any) -> Any:
        """Its value for every row of an Arrow table, a ChunkedArray.

        Raises: ConfigError for a value that it cannot work with.
        """
        return self._asked(table, lambda query: self._database.sql(query).to_arrow_table().column(0))

    def _asked(self, table: Any, answer: Callable[[str], Any]) -> Any:
        self._database.register("documents", table)
        try:
            return answer(f"{_BEFORE}{self.text}\n) AS value FROM documents")
        except self._duckdb.Error as error:
            raise self._shown(error) from error
        finally:
            self._database.unregister("documents")

    def _check(self, known: Mapping[str, Any]) -> list[str]:
        """The columns that are named."""
        tree = self._tree(self.text)
        if tree["error"]:
            message = tree["error_message"]
            at = int(tree.get("position") or 0) - len(_BEFORE)
            raise self.wrong(min(at, len(self.text)), message if at < len(self.text) else "the end of it too early")
        node = tree["statements"][0]["node"]
        plain = self._tree("1")["statements"][0]["node"]
        (*first, last), rest = node.pop("select_list", [None]), plain.pop("select_list")
        if len(tree["statements"]) != 1 or first or _bare(node) != _bare(plain) or not rest or last is None:
            raise self.wrong(0, "a statement, not one expression")
        columns = []
        for part in _parts(last):
            at = int(part.get("query_location") or 0) - len(_BEFORE)
            kind, function = part["class"], part.get("function_name")
            if kind not in _CLASSES:
                raise self.wrong(at, f"{kind.lower()}, which this language does not have")
            if function is not None and function not in _OPERATORS and function not in FUNCTIONS:
                raise self.wrong(at, f"the function {function!r}, expected one of {', '.join(FUNCTIONS)}")
            if kind == "COLUMN_REF":
                name = ".".join(part["column_names"])
                if name not in known:
                    raise self.wrong(at, str(unknown("", name, known, "column")))
                columns.append(name)
        return sorted(set(columns))

    def _tree(self, text: str) -> Any:
        found = self._database.execute("SELECT json_serialize_sql($1)", [f"{_BEFORE}{text}\n)"]).fetchall()
        return json.loads(found[0][0])

    def wrong(self, at: int, found: str) -> ConfigError:
        return ConfigError(f"{self._option}, column {at + 1}", f"found {found}\n{self.text}\n{' ' * max(at, 0)}^")

    def _shown(self, error: Exception) -> ConfigError:
        message, _, place = str(error).partition("LINE 2: ")
        shown, _, marks = place.partition("\n")
        at = len(marks) - len(marks.lstrip()) - len("LINE 2: ")
        if shown.startswith("..."):  # cut by DuckDB, where it is long
            at += max(self.text.find(shown.strip(".")), 0) - 3
        return self.wrong(max(at, 0), message.partition(": ")[2].partition("\n")[0] or message)


def _parts(node: Any) -> Iterator[dict[str, Any]]:
    """All that has a class, from the outside to the inside."""
    if isinstance(node, dict):
        if "class" in node:
            yield node
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from _parts(inner)


def _bare(node: Any) -> Any:
    """Without places."""
    if isinstance(node, dict):
        return {key: _bare(value) for key, value in node.items() if not key.startswith("query_location")}
    return [_bare(value) for value in node] if isinstance(node, list) else node
