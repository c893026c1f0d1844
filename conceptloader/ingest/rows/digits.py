"""Lists of token ids in JSON text, parsed in compiled code: most bytes of tokenized jsonl are such lists.

Whatever is not plainly such a list is left to the `json` module, which is also the reference.
"""

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.compiled.kernel import kernel

_MOST_DIGITS = 18  # fit int64


@kernel
def parse_digits(data: NDArray[np.uint8], out: NDArray[np.int64]) -> int:
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
        if digits == 0 or digits > _MOST_DIGITS or (digits > 1 and data[first] == 48):
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


def cut_list(line: bytes, key: bytes) -> tuple[bytes, NDArray[np.int64]] | None:
    """(line with 0 in place of the list, integers of the list) for the only list called `key`; None if in doubt.

    key: a JSON string, quotes included. The caller parses the rest and checks that the 0 stands where it should: a
    nested object may have the same key.
    """
    at = line.find(key)
    if at < 0 or line.find(key, at + 1) >= 0:
        return None
    begin = line.find(b"[", at)
    if begin < 0 or line[at + len(key) : begin].strip() != b":":
        return None
    end = line.find(b"]", begin)
    if end < 0:
        return None
    out = np.empty((end - begin) // 2 + 1, np.int64)
    count = parse_digits(np.frombuffer(line, np.uint8, end - begin - 1, begin + 1), out)
    if count < 0:
        return None
    return line[:begin] + b"0" + line[end + 1 :], out[:count]
