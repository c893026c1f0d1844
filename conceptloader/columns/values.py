"""Values as a column stores them, out of numpy or torch, on any device."""

import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import ConfigError
from conceptloader.format.spec.columnfile import BF16

Array = NDArray[Any]


class Stored(NamedTuple):
    """values: C order, little-endian. wrong: whether each item has an element that the type cannot hold, or NaN.

    None: no item has. given: as they came, for messages.
    """

    values: Array
    wrong: NDArray[np.bool_] | None
    given: Array


def as_stored(values: Any, dtype: str, items: int, where: str) -> Stored:
    """An array or tensor, whose first `items` dimensions count items, as a column of a type stores it.

    Integers become integers, and floats floats, which are rounded.

    Raises: ConfigError for another kind of values.
    """
    given, bits = _as_array(values, dtype)
    kind = "f" if bits or dtype == BF16 else np.dtype(dtype).kind
    if bits or given.dtype.kind == kind or {given.dtype.kind, kind} == {"i", "u"}:
        found, wrong = _converted(given, dtype, bits)
    else:
        rule = f"{'floats' if kind == 'f' else 'integers'}, for a column of {dtype}"
        raise ConfigError(
            where, f"values of {given.dtype}", rule, "convert them with astype, or pass the column's dtype"
        )
    if wrong is not None:
        wrong = np.logical_or.reduce(wrong.reshape(*wrong.shape[:items], -1), -1)
        given = (given.astype("u4") << 16).view("f4") if bits else given
    return Stored(found, wrong, given)


def _as_array(values: Any, dtype: str) -> tuple[Array, bool]:
    """(values, whether they are the bits of bf16 instead)."""
    if hasattr(values, "detach"):
        values = values.detach()
        bits = str(values.dtype) == "torch.bfloat16" and dtype == BF16
        if bits:
            values = values.contiguous().view(sys.modules["torch"].int16)
        elif str(values.dtype) == "torch.bfloat16":
            values = values.float()
        found: Array = values.cpu().numpy()
        return (found.view("u2"), True) if bits else (found, False)
    return np.asarray(values), False


def _converted(given: Array, dtype: str, bits: bool) -> tuple[Array, NDArray[np.bool_] | None]:
    if bits or given.dtype.kind == "f":
        return _floats(given, dtype, bits)
    stored, limits = np.dtype(f"<{dtype}"), np.iinfo(dtype)
    wrong = None
    if (
        not np.can_cast(given.dtype, stored)
        and given.size
        and not limits.min <= given.min() <= given.max() <= limits.max
    ):
        wrong = (given < limits.min) | (given > limits.max)
    return np.ascontiguousarray(given, stored), wrong


def _floats(given: Array, dtype: str, bits: bool) -> tuple[Array, NDArray[np.bool_] | None]:
    if bits or (dtype == "f2" and given.dtype == np.float16):  # numpy computes with f2 one by one
        found = np.ascontiguousarray(given).view("<u2")
        wrong = (found & 0x7FFF) > (0x7F80 if bits else 0x7C00)
        return (found if bits else found.view("<f2")), wrong if wrong.any() else None
    with np.errstate(over="ignore"):
        if dtype == BF16:
            raised = np.ascontiguousarray(given, "<f4").view("<u4")
            # To the nearest, halves to even. NaN, which could become infinite, is refused below.
            found = ((raised + (0x7FFF + ((raised >> 16) & 1))) >> 16).astype("<u2")
            infinite = (found & 0x7FFF) == 0x7F80
        else:
            found = np.ascontiguousarray(given, f"<{dtype}")
            infinite = np.isinf(found) if found.itemsize < given.itemsize else None
    wrong = np.isnan(given)
    if infinite is not None:
        wrong |= infinite & ~np.isinf(given)
    return found, wrong if wrong.any() else None
