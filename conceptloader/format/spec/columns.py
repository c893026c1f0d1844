"""Columns of the shard table: JSON lists with one element per shard, checked and turned into arrays without a loop."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.spec.jsonfile import describe, is_checksum
from conceptloader.format.spec.layout import DAMAGED, MAX_SIZE, bad

Ints = NDArray[np.int64]


def offsets_of(lengths: "Ints | NDArray[np.bool_] | Sequence[int]") -> Ints:
    """int64 [n + 1]: where each of n things of these lengths begins when they lie end to end, and the total."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _check_length(values: list[Any], count: int, where: str) -> None:
    if len(values) != count:
        raise bad(where, f"{len(values)} elements", f"{count}, one per shard", DAMAGED)


def _check_types(values: list[Any], allowed: set[type], where: str, expected: str) -> None:
    if not set(map(type, values)) <= allowed:
        i = next(i for i, value in enumerate(values) if type(value) not in allowed)
        raise bad(f"{where}[{i}]", describe(values[i]), expected, DAMAGED)


def int_column(values: list[Any], count: int, where: str, limit: int = MAX_SIZE, nullable: bool = False) -> Ints:
    """Integers in [0, limit] as int64 [count]; null, where allowed, becomes -1."""
    _check_length(values, count, where)
    expected = f"an integer in [0, {limit}]" + (" or null" if nullable else "")
    _check_types(values, {int, type(None)} if nullable else {int}, where, expected)
    present = [value for value in values if value is not None]
    if present and (min(present) < 0 or max(present) > limit):
        i = next(i for i, value in enumerate(values) if value is not None and not 0 <= value <= limit)
        raise bad(f"{where}[{i}]", values[i], expected, DAMAGED)
    if len(present) == count:
        return np.array(values, np.int64)
    return np.array([-1 if value is None else value for value in values], np.int64)


def text_column(values: list[Any], count: int, where: str, nullable: bool = False) -> list[Any]:
    """Strings, or null where allowed; the list itself."""
    _check_length(values, count, where)
    expected = "a string" + (" or null" if nullable else "")
    _check_types(values, {str, type(None)} if nullable else {str}, where, expected)
    return values


def checksum_column(values: list[Any], count: int, where: str) -> list[Any]:
    """xxh3-64 checksums, 16 lower-case hexadecimal digits each, or null; the list itself."""
    text_column(values, count, where, nullable=True)
    present = [value for value in values if value is not None]
    if not set(map(len, present)) <= {16} or not set("".join(present)) <= set("0123456789abcdef"):
        i = next(i for i, value in enumerate(values) if value is not None and not is_checksum(value))
        raise bad(f"{where}[{i}]", describe(values[i]), "16 lower-case hexadecimal digits or null", DAMAGED)
    return values


def require(rows: NDArray[np.bool_], where: str, found: Ints, expected: str | Ints) -> None:
    """A rule that must hold in every row; the error names the first row that breaks it."""
    if not rows.all():
        i = int(np.argmin(rows))
        rule = expected if isinstance(expected, str) else str(int(expected[i]))
        raise bad(f"{where}[{i}]", int(found[i]), rule, DAMAGED)
