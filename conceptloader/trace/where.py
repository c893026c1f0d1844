"""The language of `subset` and `locate`: SQL over columns of documents, and TRACK:CONCEPT, which tokens carry.

DuckDB parses it, and evaluates it of documents. docs/subsets.md lists what is allowed; everything else is refused
before. To DuckDB a concept is a column of true and false, and as long as what it replaces, so that messages point at
the character.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.base.strict import unknown
from conceptloader.base.version import PAGES
from conceptloader.errors import ConfigError
from conceptloader.format.spec.columns import Ints

Intervals = tuple[Ints, Ints]
"""Starts and ends of disjoint intervals of tokens, in order, none of them empty."""

_WORD = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_SCAN = re.compile(
    rf"""'[^']*'|(?P<track>"[^"]+"|{_WORD})\s*:(?!:)\s*(?P<label>'[^']*'|"[^"]+"|[^\s()'",:=<>!]+)"""
    r"""(?:\s*(?P<op><=|>=|!=|=|<|>)\s*(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.]))?"""
    rf"""|(?P<dollar>"[^"$]*\$[^"]*"|\$)|"[^"]*"|(?P<word>{_WORD})"""
)
_CLASSES = {"COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN", "FUNCTION", "CASE"}
_AROUND_CONCEPTS = {"", "CONJUNCTION", "OPERATOR_NOT", "CASE"}
FUNCTIONS = (
    "abs", "floor", "ceil", "round", "least", "greatest", "lower", "upper", "length", "len", "contains", "starts_with",
    "ends_with", "substring", "regexp_matches", "list_contains", "list_has_any", "list_has_all",
)  # fmt: skip
_OPERATORS = {"+", "-", "*", "/", "//", "%", "||", "~~", "!~~", "~~*", "!~~*", "->>", "->", "list_value"}
_BEFORE = "SELECT (\n"
_DEPTH = 100
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip


@dataclass(frozen=True)
class Where:
    """An expression of concepts, or a part of one.

    Its operator is "and", "or" or "not" of `parts`, or "concept": tokens in spans of the track `name` that carry
    `concept`, a name or an id, with a score of which `compare` (one of OPERATORS) holds for `score`; without compare,
    with any score or none.

    Attributes:
        at: Where it stands in `text`, the value of `option`, for messages.
    """

    operator: str
    parts: tuple["Where", ...] = ()
    name: str = ""
    concept: str | int = ""
    compare: str = ""
    score: float = 0
    at: int = field(default=0, compare=False)
    text: str = field(default="", compare=False)
    option: str = field(default="where", compare=False)

    def wrong(self, found: str, expected: str) -> ConfigError:
        """The error for this test, which points at it if it was parsed from a text."""
        if not self.text:
            return ConfigError(f"{self.operator} {self.name}:{self.concept}", found, expected)
        return _wrong(self.text, self.at, found, expected, self.option)

    def tests(self) -> Iterator["Where"]:
        """The concepts that are in it."""
        if self.operator == "concept":
            yield self
        for part in self.parts:
            yield from part.tests()

    def renamed(self, ids: Mapping["Where", int]) -> "Where":
        """The same, of ids instead of names of concepts."""
        if self.operator == "concept":
            return replace(self, concept=ids[self])
        return replace(self, parts=tuple(part.renamed(ids) for part in self.parts))

    def intervals(self, of: Callable[["Where"], Intervals], first: int, last: int) -> Intervals:
        """The tokens of [first, last) of which it holds. of: those of which a test of concepts does."""
        if not self.parts:
            start, end = of(self)
            low, high = np.searchsorted(end, first, side="right"), np.searchsorted(start, last)
            return np.maximum(start[low:high], first), np.minimum(end[low:high], last)
        parts = [part.intervals(of, first, last) for part in self.parts]
        if self.operator == "not":  # all of them, less what begins where the part does
            return _covered([(np.array([first]), np.array([last])), parts[0][::-1]], 1)
        return _covered(parts, len(parts) if self.operator == "and" else 1)


def parse_where(text: str, option: str = "where") -> Where:
    """The expression of concepts in `text`, joined by and, or, not.

    Args:
        text: The expression.
        option: What it is called in messages.

    Raises:
        ConfigError: That points at the character.
    """
    return Expression(text, option).of_tokens()


class Expression:
    """An expression that is parsed, and in which there is nothing but what the language has.

    Attributes:
        concepts: Those in it, by the columns of true and false that stand for them.
        columns: The other columns that it names.

    Raises:
        ConfigError: That points at the character; here, and where it is checked or evaluated.
    """

    def __init__(self, text: str, option: str = "where") -> None:
        self._duckdb = need("duckdb", f"{option}: found no duckdb package, which evaluates it")
        self._text, self._option = re.sub(r"\s", " ", text), option
        self.concepts: dict[str, Where] = {}
        self._dotted: dict[str, str] = {}
        self._plain = _SCAN.sub(self._replaced, self._text)
        # One thread: rows stay in their order. Nothing but what is registered can be read.
        settings = {"enable_external_access": "false", "threads": "1"}
        self._database = self._duckdb.connect(":memory:", config=settings)
        self._node = self._parsed()
        self._places = self._check()
        self.columns = sorted(self._places)

    def of_tokens(self, node: Any = None) -> Where:
        """The same as an expression of tokens, which have concepts but no columns."""
        node = self._node if node is None else node
        if node["class"] == "CONJUNCTION":
            parts = tuple(self.of_tokens(child) for child in node["children"])
            return Where(node["type"].removeprefix("CONJUNCTION_").lower(), parts)
        if node["type"] == "OPERATOR_NOT":
            return Where("not", (self.of_tokens(node["children"][0]),))
        name = _name(node)
        if name in self.concepts:
            return self.concepts[name]
        column = next(iter(self._places), None)
        what = "no concept" if column is None else f"the column {column!r}"
        raise self.wrong(self._places.get(column or "", _at(node)), what, "concepts of tokens, TRACK:CONCEPT")

    def check(self, known: Mapping[str, Any], keys: Callable[[str], list[str]] = lambda _: []) -> None:
        """Raises: ConfigError unless it is true or false.

        known: the columns that there are, by Arrow type. keys: those of records that end in a name.
        """
        for name, at in self._places.items():
            if name not in known:
                error, meant = unknown("", name, known, "column"), " or ".join(keys(name))
                fix = f"did you mean {meant}?" if meant else error.fix
                raise self.wrong(at, error.found, "; ".join(filter(None, (error.expected, fix))))
        arrow = need("pyarrow", f"{self._option}: found no pyarrow package, which makes the tables")
        types = {name: known[name] for name in self.columns or list(known)[:1]}
        types |= dict.fromkeys(self.concepts, arrow.bool_())
        empty = arrow.table({name: arrow.array([], kind) for name, kind in types.items()})
        self._asked(empty, lambda query: self._database.execute(query).fetchall())  # whose errors have places
        if (kind := self(empty).type) != arrow.bool_():
            raise self.wrong(0, f"a value of type {kind}", "true or false")

    def __call__(self, table: Any) -> Any:
        """Its value for every row of an Arrow table, a ChunkedArray.

        Raises: ConfigError for a value that it cannot work with.
        """
        return self._asked(table, lambda query: self._database.sql(query).to_arrow_table().column(0))

    def wrong(self, at: int, found: str, expected: str = "") -> ConfigError:
        """The error for the character `at`, the first where DuckDB names none."""
        at = at if 0 <= at <= len(self._text) else 0
        return _wrong(self._text, at, found, expected, self._option)

    def _replaced(self, found: re.Match[str]) -> str:
        """What stands for a concept, or for a key of records, in SQL; of the same length."""
        if found["dollar"]:
            raise self.wrong(found.start(), repr(found[0]))
        if found["label"]:
            column = f"_{len(self.concepts)}$"
            self.concepts[column] = Where(
                "concept", name=found["track"].strip('"'), concept=found["label"].strip("'\""),
                compare=found["op"] or "", score=float(found["number"] or 0),
                at=found.start(), text=self._text, option=self._option,
            )  # fmt: skip
            return column.ljust(len(found[0]))
        if found["word"] and "." in found["word"]:
            self._dotted[found["word"]] = found["word"].replace(".", "$")
            return self._dotted[found["word"]]
        return found[0]

    def _asked(self, table: Any, answer: Callable[[str], Any]) -> Any:
        names = [self._dotted.get(name, name) for name in table.column_names]
        self._database.register("documents", table.rename_columns(names))
        try:
            return answer(f"{_BEFORE}{self._plain}\n) AS value FROM documents")
        except self._duckdb.Error as error:
            raise self._shown(error) from error
        finally:
            self._database.unregister("documents")

    def _parsed(self) -> Any:
        """The one expression that the text is."""
        if not self._plain.strip():
            raise self.wrong(0, "nothing")
        tree = self._tree(self._plain)
        if tree["error"]:
            message = tree["error_message"]
            at = int(tree.get("position") or 0) - len(_BEFORE)
            early = at >= len(self._text)
            raise self.wrong(min(at, len(self._text)), "the end of it too early" if early else message)
        node, plain = (one["statements"][0]["node"] for one in (tree, self._tree("1")))
        del plain["select_list"]
        *more, last = node.pop("select_list", [None])
        if len(tree["statements"]) != 1 or more or last is None or _bare(node) != _bare(plain):
            raise self.wrong(0, "a statement, not one expression")
        return last

    def _check(self) -> dict[str, int]:
        """The columns that are named, and where first."""
        given, places = {alias: name for name, alias in self._dotted.items()}, dict[str, int]()
        for part, above, depth in _parts(self._node):
            at, kind, function = _at(part), part["class"], part.get("function_name")
            if depth > _DEPTH:
                raise self.wrong(at, f"more than {_DEPTH} levels", "fewer")
            if kind not in _CLASSES:
                raise self.wrong(at, f"{kind.lower()}, which this language does not have")
            if function is not None and function not in _OPERATORS and function not in FUNCTIONS:
                raise self.wrong(at, f"the function {function!r}", f"one of {', '.join(FUNCTIONS)}")
            if kind == "COLUMN_REF" and (name := _name(part)) not in self.concepts:
                places.setdefault(given.get(name, name), at)
            elif kind == "COLUMN_REF" and above not in _AROUND_CONCEPTS:
                expected = "a concept, TRACK:CONCEPT or TRACK:CONCEPT > NUMBER, joined by and, or, not"
                raise self.concepts[name].wrong("a concept as a value", expected)
        return places

    def _tree(self, text: str) -> Any:
        found = self._database.execute("SELECT json_serialize_sql($1)", [f"{_BEFORE}{text}\n)"]).fetchall()
        try:
            return json.loads(found[0][0])
        except RecursionError:
            raise self.wrong(0, f"more than {_DEPTH} levels", "fewer") from None

    def _shown(self, error: Exception) -> ConfigError:
        message, _, place = str(error).partition("LINE 2: ")
        shown, _, marks = place.partition("\n")
        at = len(marks) - len(marks.lstrip()) - len("LINE 2: ")
        if shown.startswith("..."):  # cut by DuckDB, where it is long
            at += max(self._plain.find(shown.strip(".")), 0) - 3
        found = message.partition(": ")[2].partition("\n")[0] or message
        for name, alias in self._dotted.items():
            found = found.replace(alias, name)
        return self.wrong(at, found)


def _wrong(text: str, at: int, found: str, expected: str, option: str) -> ConfigError:
    expected = expected or f"an expression as in {PAGES}/subsets.md"
    return ConfigError(f"{option}, column {at + 1}", found, f"{expected}\n{text}\n{' ' * at}^")


def _at(node: Any) -> int:
    return int(node.get("query_location") or 0) - len(_BEFORE)


def _name(node: Any) -> str:
    return ".".join(node.get("column_names", ()))


def _parts(node: Any, above: str = "", depth: int = 0) -> Iterator[tuple[dict[str, Any], str, int]]:
    """All that has a class, from the outside to the inside: with what it stands in, and how deep."""
    if isinstance(node, dict):
        if "class" in node:
            yield node, above, depth
            if depth > _DEPTH:
                return
            above, depth = node["type"] if node["class"] == "OPERATOR" else node["class"], depth + 1
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from _parts(inner, above, depth)


def _bare(node: Any) -> Any:
    """Without places."""
    if isinstance(node, dict):
        return {key: _bare(value) for key, value in node.items() if not key.startswith("query_location")}
    return [_bare(value) for value in node] if isinstance(node, list) else node


def _covered(parts: list[Intervals], wanted: int) -> Intervals:
    """Tokens that at least `wanted` of the parts hold."""
    borders = np.concatenate([column for part in parts for column in part])
    steps = np.concatenate([np.full(len(column), 1 - 2 * side) for part in parts for side, column in enumerate(part)])
    order = np.argsort(borders, kind="stable")
    borders, depth = borders[order], np.cumsum(steps[order])
    last = np.append(borders[1:] != borders[:-1], True)[: len(borders)]
    borders, inside = borders[last], depth[last] >= wanted
    change = np.flatnonzero(np.diff(np.concatenate([[False], inside])))
    found = borders[change]
    return found[::2], found[1::2]
