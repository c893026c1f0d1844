"""Kernels: lists of numbers in text."""

from typing import Annotated

import numpy as np
import numpy.typing as npt

from conceptloader.kernels.kernel import I64Array, kernel

Bytes = Annotated[npt.NDArray[np.uint8], np.uint8]
MOST_DIGITS = 18  # fit int64


@kernel
def parse_digits(data: Bytes, out: I64Array) -> int:
    """The integers of `data`, the inside of a JSON list, into `out`, which has len(data) // 2 + 1 items.

    Returns: how many there are, or -1 if `data` is anything but non-negative integers of at most 18 digits.
    """
    n = len(data)
    i = 0
    count = 0
    while i < n and (data[i] == 32 or data[i] == 9):
        i += 1
    if i == n:
        return 0
    while True:
        first = i
        value = np.int64(0)
        while i < n and 48 <= data[i] <= 57:
            value = value * np.int64(10) + np.int64(data[i] - 48)
            i += 1
        digits = i - first
        if digits == 0 or digits > MOST_DIGITS or (digits > 1 and data[first] == 48):
            return -1
        out[count] = value
        count += 1
        while i < n and (data[i] == 32 or data[i] == 9):
            i += 1
        if i == n:
            return count
        if data[i] != 44:
            return -1
        i += 1
        while i < n and (data[i] == 32 or data[i] == 9):
            i += 1
