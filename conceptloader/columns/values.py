"""Values as a column stores them, out of numpy or torch, on any device."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import ConfigError
from conceptloader.format.spec.columnfile import BF16, ColumnFile

Array = NDArray[Any]


def to_numpy(values: Any) -> Array:
    """An array or a tensor, which may be on a device; bf16 as f4."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    return np.asarray(values)


def as_items(given: Array, column: ColumnFile, where: str, place: Callable[[int], str]) -> Array:
    """Values [n, *shape] as n items of a column. Integers become integers, and floats floats, which are rounded.

    Raises: ConfigError for another kind of values, for what the type cannot hold, and NaN; place: how to name item i.
    """
    dtype, kind = column.dtype, "i" if column.stored.kind in "iu" and column.dtype != BF16 else "f"
    if given.dtype.kind not in {"i": "iu", "f": "f"}[kind]:
        rule = f"{'floats' if kind == 'f' else 'integers'}, for a column of {dtype}"
        fix = "convert them with astype, or pass the column's dtype"
        raise ConfigError(where, f"values of {given.dtype}", rule, fix)
    with np.errstate(over="ignore"):
        if dtype == BF16:
            raised = np.ascontiguousarray(given, "<f4").view("<u4")
            # To the nearest, halves to even. NaN, which could become infinite, is refused below.
            found = ((raised + (0x7FFF + ((raised >> 16) & 1))) >> 16).astype("<u2")
            infinite = (found & 0x7FFF) == 0x7F80
        else:
            found = np.ascontiguousarray(given, column.stored)
            infinite = np.isinf(found)
    if kind == "f":
        wrong = np.isnan(given) | (infinite & ~np.isinf(given))
    else:
        limits = np.iinfo(column.stored)
        wrong = (given < limits.min) | (given > limits.max)
    if wrong.any():
        i = int(np.argmax(wrong.reshape(len(wrong), -1).any(1)))
        fix = "pass another dtype to column_writer, or mask these values"
        values = given[i].reshape(-1)[:4].tolist()
        raise ConfigError(f"{where}{place(i)}", str(values), f"numbers that {dtype} holds, not NaN", fix)
    items: Array = found.reshape(-1).view(f"V{column.itemsize}")
    return items
