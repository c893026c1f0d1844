"""Lists of token ids in JSON text, parsed by a kernel: most bytes of tokenized jsonl are such lists.

All that is not plainly such a list is left to the `json` module, which is also the reference.
"""

import numpy as np
from numpy.typing import NDArray

from conceptloader.kernels.digits import parse_digits


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
