"""Kernels: lists of numbers in text and in bytes. Spans in the concept index are differences, seven bits a byte."""

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


@kernel
def encode_spans(concept: I64Array, starts: I64Array, ends: I64Array, out: Bytes, sizes: I64Array) -> int:
    """Spans by concept, each as two numbers: tokens since the one before of its concept ended, and its length.

    sizes: bytes of each span. Returns: bytes written to `out`, at most 20 a span.
    """
    at = 0
    for k in range(len(concept)):
        begin = at
        last = ends[k - 1] if k and concept[k] == concept[k - 1] else np.int64(0)
        for number in (starts[k] - last, ends[k] - starts[k]):
            left = np.uint64(number)
            while left >= np.uint64(128):
                out[at] = np.uint8(left & np.uint64(127)) | np.uint8(128)
                left >>= np.uint64(7)
                at += 1
            out[at] = np.uint8(left)
            at += 1
        sizes[k] = at - begin
    return at


@kernel
def decode_spans(data: Bytes, starts: I64Array, ends: I64Array) -> bool:
    """The inverse, for one concept. Returns: whether `data` were just as many spans as there is room for."""
    at = 0
    last = np.int64(0)
    for k in range(len(starts)):
        for part in range(2):
            number = np.uint64(0)
            shift = np.uint64(0)
            while True:
                if at >= len(data) or shift > np.uint64(56):
                    return False
                byte = np.uint64(data[at])
                at += 1
                number |= (byte & np.uint64(127)) << shift
                shift += np.uint64(7)
                if byte < np.uint64(128):
                    break
            last += np.int64(number)
            if part == 0:
                starts[k] = last
            else:
                ends[k] = last
    return at == len(data)
