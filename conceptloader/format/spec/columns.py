"""Columns of the shard table: JSON lists with one element per shard, checked and turned into arrays without a loop."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.spec.jsonfile import JsonObject, describe, is_checksum
from conceptloader.format.spec.layout import DAMAGED, MAX_SIZE, bad

Ints = NDArray[np.int64]


def offsets_of(lengths: "Ints | NDArray[np.bool_] | Sequence[int]") -> Ints:
    """int64 [n + 1]: where each of n things of these lengths begins when they lie end to end, and the total."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def as_field(values: NDArray[Any], dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Values of a token field as they are stored. Raises: ValueError if the type cannot hold them."""
    with np.errstate(all="ignore"):
        column = values.astype(dtype)
    endless = np.isinf(column)
    if not (np.array_equal(column, values) if dtype.kind in "iu" else np.isinf(values[endless]).all()):
        raise ValueError(f"found values that {dtype} cannot hold; use another type")
    return column


def list_column(head: JsonObject, key: str, count: int, optional: bool = False) -> list[Any]:
    """Anything. optional: null everywhere if it is absent."""
    values: list[Any] | None = head.take(key, list, None) if optional else head.take(key, list)
    if values is not None and len(values) != count:
        raise bad(head.at(key), f"{len(values)} elements", f"{count}, one per shard", DAMAGED)
    return [None] * count if values is None else values


def _check(head: JsonObject, key: str, values: list[Any], good: Callable[[Any], bool], expected: str) -> None:
    """Refuse a column which has, as is known, a value that is not good."""
    i = next(i for i, value in enumerate(values) if not good(value))
    raise bad(f"{head.at(key)}[{i}]", describe(values[i]), expected, DAMAGED)


def int_column(head: JsonObject, key: str, count: int, limit: int = MAX_SIZE, nullable: bool = False) -> Ints:
    """Integers in [0, limit] as int64 [count]; null, where allowed, becomes -1."""
    values = list_column(head, key, count)
    present = [value for value in values if value is not None] if nullable else values
    if not set(map(type, present)) <= {int} or (present and (min(present) < 0 or max(present) > limit)):

        def good(value: Any) -> bool:
            return nullable if value is None else type(value) is int and 0 <= value <= limit

        _check(head, key, values, good, f"an integer in [0, {limit}]" + (" or null" if nullable else ""))
    if len(present) < count:
        values = [-1 if value is None else value for value in values]
    return np.array(values, np.int64)


def text_column(head: JsonObject, key: str, count: int, nullable: bool = False, optional: bool = False) -> list[Any]:
    """Strings, or null where allowed; the list itself."""
    values = list_column(head, key, count, optional)
    allowed = {str, type(None)} if nullable else {str}
    if not set(map(type, values)) <= allowed:
        expected = "a string" + (" or null" if nullable else "")
        _check(head, key, values, lambda value: type(value) in allowed, expected)
    return values


def checksum_column(head: JsonObject, key: str, count: int) -> list[Any]:
    """xxh3-64 checksums, 16 lower-case hexadecimal digits each, or null; the list itself."""
    values = text_column(head, key, count, nullable=True)
    present = [value for value in values if value is not None]
    if not set(map(len, present)) <= {16} or not set("".join(present)) <= set("0123456789abcdef"):
        rule = "16 lower-case hexadecimal digits or null"
        _check(head, key, values, lambda value: value is None or is_checksum(value), rule)
    return values


def require(rows: NDArray[np.bool_], where: str, found: Ints, expected: str | Ints) -> None:
    """A rule that must hold in every row; the error names the first row that breaks it."""
    if not rows.all():
        i = int(np.argmin(rows))
        rule = expected if isinstance(expected, str) else str(int(expected[i]))
        raise bad(f"{where}[{i}]", int(found[i]), rule, DAMAGED)
