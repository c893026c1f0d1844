"""The expressions of `subset` and `locate`: columns of documents, concepts of tokens, and, or, not.

docs/subsets.md has the language, and nothing else is evaluated.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import ConfigError
from conceptloader.format.spec.columns import Ints

Intervals = tuple[Ints, Ints]
"""Starts and ends of disjoint intervals of tokens, in order, none of them empty."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'[^']*')|(?P<name>"[^"]+")|(?P<op><=|>=|!=|=|<|>)|(?P<mark>[(),:])|(?P<word>[^\s()'",:=<>!]+))"""
)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_KEYWORDS = ("and", "or", "not", "in", "is", "null", "true", "false")
_DEPTH = 100
Value = str | int | float | bool
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip


@dataclass(frozen=True)
class Where:
    """An expression of concepts and columns, or a part of one.

    Its operator is "and", "or" or "not" of `parts`, or a test. "concept": tokens in spans of the track `name` that
    carry `concept`, a name or an id, with a score of which `compare` (one of OPERATORS) holds for values[0]; without
    compare, with any score or none. "column": documents of whose column `name` it holds: compare is one of OPERATORS,
    "in" (values) or "null".

    Attributes:
        at: Where it stands in `text`, the value of `option`, for messages.
    """

    operator: str
    parts: tuple["Where", ...] = ()
    name: str = ""
    concept: str | int = ""
    compare: str = ""
    values: tuple[Value, ...] = ()
    at: int = field(default=0, compare=False)
    text: str = field(default="", compare=False)
    option: str = field(default="where", compare=False)

    def wrong(self, found: str, expected: str) -> ConfigError:
        """The error for this test, which points at it if it was parsed from a text."""
        if not self.text:
            return ConfigError(f"{self.operator} {self.name}:{self.concept}", found, expected)
        return wrong(self.text, self.at, found, expected, self.option)

    def tests(self, operator: str) -> Iterator["Where"]:
        """Those of one kind that are in it, "concept" or "column"."""
        if self.operator == operator:
            yield self
        for part in self.parts:
            yield from part.tests(operator)

    def renamed(self, ids: Callable[["Where"], int]) -> "Where":
        """The same, of ids instead of names of concepts."""
        if self.operator == "concept":
            return replace(self, concept=ids(self))
        return replace(self, parts=tuple(part.renamed(ids) for part in self.parts))

    def rows(self, of: Callable[["Where"], NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """The documents of which it holds. of: those of which a test does."""
        if not self.parts:
            return of(self)
        parts = [part.rows(of) for part in self.parts]
        if self.operator == "not":
            return ~parts[0]
        found: NDArray[np.bool_] = (np.logical_and if self.operator == "and" else np.logical_or).reduce(parts)
        return found

    def intervals(self, of: Callable[["Where"], Intervals], first: int, last: int) -> Intervals:
        """The tokens of [first, last) of which it holds. of: those of which a test of concepts does."""
        if not self.parts:
            start, end = of(self)
            low, high = np.searchsorted(end, first, side="right"), np.searchsorted(start, last)
            return np.maximum(start[low:high], first), np.minimum(end[low:high], last)
        parts = [part.intervals(of, first, last) for part in self.parts]
        if self.operator == "not":
            start, end = parts[0]
            borders = np.concatenate([[first], np.stack([start, end], 1).reshape(-1), [last]]).reshape(-1, 2)
            real = borders[:, 0] < borders[:, 1]
            return borders[real, 0], borders[real, 1]
        wanted = len(parts) if self.operator == "and" else 1
        return _covered(parts, wanted)


def parse_where(text: str, option: str = "where") -> Where:
    """The expression in `text`.

    Args:
        text: The expression.
        option: What it is called in messages.

    Raises:
        ConfigError: That points at the character.
    """
    words: list[_Word] = []
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        at += len(text[at:]) - len(text[at:].lstrip())
        if found is None:
            raise wrong(text, at, "a quote without its end" if text[at] in "'\"" else repr(text[at]), "", option)
        words.append(_Word(found.start(str(found.lastgroup)), str(found.lastgroup), found[str(found.lastgroup)]))
        at = found.end()
    parser = _Parser(text, [*words, _Word(len(text), "end", "the end")], option)
    where = parser.either(0)
    if parser.next.kind != "end":
        raise parser.wrong("and, or, or the end")
    return where


def wrong(text: str, at: int, found: str, expected: str, option: str = "where") -> ConfigError:
    """The error for the character `at` of an expression."""
    expected = expected or "an expression as in docs/subsets.md"
    return ConfigError(f"{option}, column {at + 1}", found, f"{expected}\n{text}\n{' ' * at}^")


@dataclass(frozen=True)
class _Word:
    at: int
    kind: str
    text: str

    def is_word(self, *texts: str) -> bool:
        return self.kind in ("word", "mark") and self.text in texts


class _Parser:
    def __init__(self, text: str, words: list[_Word], option: str) -> None:
        self.text, self.words, self.option, self.at = text, words, option, 0

    @property
    def next(self) -> _Word:
        return self.words[self.at]

    def wrong(self, expected: str, word: _Word | None = None) -> ConfigError:
        word = word or self.next
        found = word.text if word.kind == "end" else repr(word.text)
        return wrong(self.text, word.at, found, expected, self.option)

    def take(self) -> _Word:
        self.at += 1
        return self.words[self.at - 1]

    def took(self, *texts: str) -> bool:
        """Whether the next word is one of these; it is then passed over."""
        found = self.next.is_word(*texts)
        self.at += found
        return found

    def either(self, depth: int) -> Where:
        parts = [self.both(depth)]
        while self.took("or"):
            parts.append(self.both(depth))
        return parts[0] if len(parts) == 1 else Where("or", tuple(parts))

    def both(self, depth: int) -> Where:
        parts = [self.one(depth)]
        while self.took("and"):
            parts.append(self.one(depth))
        return parts[0] if len(parts) == 1 else Where("and", tuple(parts))

    def one(self, depth: int) -> Where:
        if depth > _DEPTH:
            raise wrong(self.text, self.next.at, f"more than {_DEPTH} levels", "fewer", self.option)
        bracket = self.next
        if self.took("not"):
            return Where("not", (self.one(depth + 1),))
        if self.took("("):
            inner = self.either(depth + 1)
            if not self.took(")"):
                raise self.wrong("and, or, or the ) of this bracket", self.next if self.next.kind != "end" else bracket)
            return inner
        return self.test()

    def test(self) -> Where:
        word = self.take()
        plain = word.kind == "word" and word.text not in _KEYWORDS and _NAME.fullmatch(word.text)
        if not plain and word.kind != "name":
            raise self.wrong("a column, TRACK:CONCEPT, not, or (", word)
        test = Where("column", name=word.text.strip('"'), at=word.at, text=self.text, option=self.option)
        if self.took(":"):
            label = self.take()
            if label.kind not in ("word", "text", "name"):
                raise self.wrong("the name of a concept, in quotes if it is no single word", label)
            concept = replace(test, operator="concept", concept=label.text.strip("'\""))
            if self.next.kind == "op":
                concept = replace(concept, compare=self.take().text, values=(self.number(),))
            return concept
        if self.next.kind == "op":
            return replace(test, compare=self.take().text, values=(self.value(),))
        if self.took("is"):
            no = self.took("not")
            if not self.took("null"):
                raise self.wrong("null, or not null")
            null = replace(test, compare="null")
            return Where("not", (null,)) if no else null
        no = self.took("not")
        if not self.took("in"):
            raise self.wrong("in" if no else f": and a concept, one of {' '.join(OPERATORS)}, in, or is")
        if not self.took("("):
            raise self.wrong("( and values")
        values = [self.value()]
        while self.took(","):
            values.append(self.value())
        if not self.took(")"):
            raise self.wrong(", or )")
        found = replace(test, compare="in", values=tuple(values))
        # Neither holds for null: a comparison with null is false.
        known = Where("not", (replace(test, compare="null"),))
        return Where("and", (known, Where("not", (found,)))) if no else found

    def number(self) -> float:
        word = self.take()
        if word.kind != "word" or not _NUMBER.fullmatch(word.text):
            raise self.wrong("a number", word)
        return float(word.text)

    def value(self) -> Value:
        word = self.take()
        if word.kind == "text":
            return word.text[1:-1]
        if word.kind == "word" and word.text in ("true", "false"):
            return word.text == "true"
        if word.kind == "word" and _NUMBER.fullmatch(word.text):
            return int(word.text) if re.fullmatch(r"[+-]?\d+", word.text) else float(word.text)
        raise self.wrong("a number, text in single quotes, true or false", word)


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
