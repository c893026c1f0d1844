"""Booleans of concepts: `animal and not (food or 'red wine')`, over the tokens that carry them. Nothing is evaluated
but what stands in this page."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from conceptloader.errors import ConfigError
from conceptloader.format.spec.columns import Ints

Intervals = tuple[Ints, Ints]
"""Starts and ends of disjoint intervals of tokens, in order, none of them empty."""

_TOKEN = re.compile(r"""\s*(?:(?P<word>[^\s()'"]+)|(?P<quoted>'[^']*'|"[^"]*")|(?P<bracket>[()]))""")
_DEPTH = 100


@dataclass(frozen=True)
class Where:
    """A concept by name or id, or a boolean of others. operator: "is", "and", "or", "not"."""

    operator: str
    concept: str | int = ""
    parts: tuple["Where", ...] = ()

    def concepts(self) -> Iterator[str | int]:
        """All that are named in it."""
        if self.operator == "is":
            yield self.concept
        for part in self.parts:
            yield from part.concepts()

    def renamed(self, ids: Mapping[str | int, int]) -> "Where":
        """The same, of ids instead of names."""
        if self.operator == "is":
            return replace(self, concept=ids[self.concept])
        return replace(self, parts=tuple(part.renamed(ids) for part in self.parts))

    def intervals(self, of: Callable[[str | int], Intervals], first: int, last: int) -> Intervals:
        """The tokens of [first, last) of which it holds. of: those that carry a concept."""
        if self.operator == "is":
            start, end = of(self.concept)
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


def parse_where(text: str) -> Where:
    """An expression of names, quoted or plain, with and, or, not and brackets.

    Raises: ConfigError that points at the column.
    """
    words: list[tuple[int, str, bool]] = []
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise _wrong(text, len(text) - len(text[at:].lstrip()), "found a quote without its end, expected both")
        kind = str(found.lastgroup)
        words.append((found.start(kind), found[kind], kind == "quoted"))
        at = found.end()
    parser = _Parser(text, words)
    where = parser.either(0)
    if parser.at < len(words):
        raise _wrong(text, words[parser.at][0], f"found {words[parser.at][1]!r}, expected and, or, or the end")
    return where


class _Parser:
    def __init__(self, text: str, words: list[tuple[int, str, bool]]) -> None:
        self.text, self.words, self.at = text, words, 0

    def next_is(self, *wanted: str) -> bool:
        """Whether the next word is one of these; it is then passed over."""
        if self.at < len(self.words) and not self.words[self.at][2] and self.words[self.at][1] in wanted:
            self.at += 1
            return True
        return False

    def either(self, depth: int) -> Where:
        parts = [self.both(depth)]
        while self.next_is("or"):
            parts.append(self.both(depth))
        return parts[0] if len(parts) == 1 else Where("or", parts=tuple(parts))

    def both(self, depth: int) -> Where:
        parts = [self.one(depth)]
        while self.next_is("and"):
            parts.append(self.one(depth))
        return parts[0] if len(parts) == 1 else Where("and", parts=tuple(parts))

    def one(self, depth: int) -> Where:
        column, word, quoted = self.words[self.at] if self.at < len(self.words) else (len(self.text), "", False)
        if depth > _DEPTH:
            raise _wrong(self.text, column, f"found more than {_DEPTH} levels, expected fewer")
        if self.next_is("not"):
            return Where("not", parts=(self.one(depth + 1),))
        if self.next_is("("):
            inner = self.either(depth + 1)
            if not self.next_is(")"):
                raise _wrong(self.text, column, "found a bracket without its end, expected )")
            return inner
        if not word or (not quoted and word in ("and", "or", ")")):
            found = repr(word) if word else "the end"
            raise _wrong(self.text, column, f"found {found}, expected the name of a concept, not, or (")
        self.at += 1
        return Where("is", word[1:-1] if quoted else word)


def _wrong(text: str, column: int, problem: str) -> ConfigError:
    return ConfigError(f"where, column {column + 1}", f"{problem}\n{text}\n{' ' * column}^")


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
