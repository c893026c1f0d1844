"""Columns of the shard table: JSON lists with one element per shard, checked and turned into arrays without a loop."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.strict import Reads
from conceptloader.errors import ConfigError
from conceptloader.format.spec.jsonfile import describe, is_checksum
from conceptloader.format.spec.layout import MAX_SIZE

Ints = NDArray[np.int64]


def offsets_of(lengths: "Ints | NDArray[np.bool_] | Sequence[int]") -> Ints:
    """int64 [n + 1]: where each of n things of these lengths begins when they lie end to end, and the total."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def total(column: Ints) -> int:
    """The sum of numbers of 0 or more, which int64 may not hold."""
    if int(column.max(initial=0)) * len(column) < 1 << 63:
        return int(column.sum())
    return (int((column >> 32).sum()) << 32) + int((column & 0xFFFFFFFF).sum())


def as_field(values: NDArray[Any], dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Values of a token field as they are stored. Raises: ValueError if the type cannot hold them."""
    with np.errstate(all="ignore"):
        column = values.astype(dtype)
        back = column.astype(values.dtype)
    if dtype.kind in "iu":
        held = np.array_equal(column, values)
    else:  # an integer as it is; float16 has no 2049
        held = np.array_equal(back, values) if values.dtype.kind in "iu" else np.isinf(values[np.isinf(column)]).all()
    if not held:
        raise ValueError(f"found values that {dtype} cannot hold, expected values in its range; use another type")
    return column


def _check(values: Any, where: str, kinds: set[type]) -> None:
    if type(values) is not list:
        raise ConfigError(where, describe(values), "a list")
    if not set(map(type, values)) <= kinds:
        expected = "an integer" if int in kinds else "a string"
        rule = expected + (" or null" if type(None) in kinds else "")
        refuse(values, where, lambda value: type(value) in kinds, rule)


def refuse(values: list[Any], where: str, good: Callable[[Any], bool], expected: str) -> NoReturn:
    """Refuse a column which has, as is known, a value that is not good."""
    i = next(i for i, value in enumerate(values) if not good(value))
    raise ConfigError(f"{where}[{i}]", describe(values[i]), expected)


def int_column(values: Any, where: str, limit: int = MAX_SIZE, nullable: bool = False) -> Ints:
    """Integers in [0, limit] as int64 [n]; null, where allowed, becomes -1."""
    _check(values, where, {int, type(None)} if nullable else {int})
    present = [value for value in values if value is not None] if nullable else values
    if present and (min(present) < 0 or max(present) > limit):
        refuse(values, where, lambda value: value is None or 0 <= value <= limit, f"an integer in [0, {limit}]")
    if len(present) < len(values):
        values = [-1 if value is None else value for value in values]
    return np.array(values, np.int64)


def text_column(values: Any, where: str, nullable: bool = False) -> list[Any]:
    """Strings, or null where allowed; the list itself."""
    _check(values, where, {str, type(None)} if nullable else {str})
    return values  # type: ignore[no-any-return]


def checksum_column(values: Any, where: str) -> list[Any]:
    """xxh3-64 checksums, 16 lower-case hexadecimal digits each, or null; the list itself."""
    _check(values, where, {str, type(None)})
    present = [value for value in values if value is not None]
    if not set(map(len, present)) <= {16} or not set("".join(present)) <= set("0123456789abcdef"):
        rule = "16 lower-case hexadecimal digits or null"
        refuse(values, where, lambda value: value is None or is_checksum(value), rule)
    return values  # type: ignore[no-any-return]


def column_of(read: Callable[..., Any], **options: Any) -> Reads:
    """One of these, for the annotation of a field."""
    return Reads(partial(read, **options), "a list")


Texts = list[str | None]
Paths = Annotated[list[str], column_of(text_column)]
Checksums = Annotated[Texts, column_of(checksum_column)]


def is_there(column: Sequence[Any]) -> NDArray[np.bool_]:
    """Where a column is not null."""
    return np.array([value is not None for value in column], np.bool_)


def require(rows: NDArray[np.bool_], where: str, found: Ints, expected: str | Ints) -> None:
    """A rule that must hold in every row; the error names the first row that breaks it. Raises: ConfigError."""
    i = int(rows.argmin())  # in a fifth of the time of all(), which many small datasets feel
    if not rows[i]:
        raise ConfigError(f"{where}[{i}]", int(found[i]), expected if isinstance(expected, str) else f"{expected[i]}")
