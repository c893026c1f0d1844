"""Kernels: reading with bookkeeping, little-endian loads, and tokens into rows of input_ids, labels and loss_mask.

All arithmetic is int64. A kernel returns 0 or one of the codes below; `state` says what it was doing.
"""

from typing import Any

import numpy as np

from conceptloader.base.compiled import inner, numbered
from conceptloader.batch.kernels.native import at_address, read_fully
from conceptloader.batch.layout import Array

ZERO, ONE = numbered(2)
WORD = ONE * 8  # bytes of a table entry

# What a kernel returns. NOT_OPEN: a file of shard ROW, and nothing was done yet at POSITION; CLOSED: the same, in the
# midst of it; FAILED: see ERRNO, -1 for a file that ends early; FULL: ragged values need NEEDED; DAMAGED: a file breaks
# the format, and the plain reader will say how; ABSENT: a sample of a member that has left.
OK, NOT_OPEN, CLOSED, FAILED, FULL, DAMAGED, ABSENT = numbered(7)

# Columns of `state`: the sample of the batch and the token in it to go on with; entries of cu_seqlens, now and when the
# sample began, and room for them; the read at hand; reads and bytes so far; see above; the longest sequence.
SAMPLE, POSITION, SEQUENCES, SEQUENCES_BEFORE, SEQUENCE_SPACE, ROW, COLUMN, AT, SIZE, READS, READ_BYTES, ERRNO, \
    NEEDED, LONGEST, STATE_SIZE = numbered(15)  # fmt: skip


@inner
def read(files: Array, row: int, column: int, target: Array, size: int, offset: int, state: Array) -> int:
    """`size` bytes at `offset` of a shard's file into the beginning of `target`."""
    state[ROW] = row
    state[COLUMN] = column
    state[AT] = offset
    state[SIZE] = size
    if size > len(target) or offset < 0:
        return DAMAGED
    descriptor = files[row, column]
    if descriptor < 0:
        return CLOSED
    state[READS] += 1
    state[READ_BYTES] += size
    state[ERRNO] = read_fully(descriptor, np.int64(target.ctypes.data), size, offset)
    return OK if state[ERRNO] == 0 else FAILED


@inner
def load4(data: Array, at: int) -> Any:
    """The u4 at any byte."""
    return (
        np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16 | np.int64(data[at + 3]) << 24
    )


@inner
def load8(data: Array, at: int) -> Any:
    """The u8 at any byte; negative from 2**63 on, which no valid file has."""
    return load4(data, at) | load4(data, at + 4) << 32


@inner
def load_token(data: Array, at: int, code: int) -> Any:
    """A token of type READABLE_TOKENS[code]."""
    if code == 0:
        return np.int64(data[at])
    if code == 1:
        return np.int64(data[at]) | np.int64(data[at + 1]) << 8
    if code == 2:
        return load4(data, at)
    if code == 3:
        return np.int64(np.int32(np.uint32(load4(data, at))))
    return load8(data, at)


@inner
def widen(data: Array, at: int, item: int, code: int, top: int, out: Array) -> int:
    """Tokens of consecutive items, the first at byte `at`, as int64. Returns OK, or DAMAGED if one is not in [0, top].

    `token | top - token` has its sign bit set if the token is negative or above `top`: no branch, so that the loops
    still become vector instructions.
    """
    n = len(out)
    signs = ZERO
    address = np.int64(data.ctypes.data) + at
    if code == 1 and item == 2 and at % 2 == 0:
        short = at_address(address, n, np.uint16)
        for i in range(n):
            token = np.int64(short[i])
            out[i] = token
            signs |= token | top - token
    elif code == 2 and item == 4 and at % 4 == 0:
        word = at_address(address, n, np.uint32)
        for i in range(n):
            token = np.int64(word[i])
            out[i] = token
            signs |= token | top - token
    else:
        for i in range(n):
            token = load_token(data, at + i * item, code)
            out[i] = token
            signs |= token | top - token
    return DAMAGED if signs < 0 else OK


@inner
def mark_loss(data: Array, at: int, item: int, field: int, eos: int, labels: Array, out: Array) -> None:
    """1, but 0 where the label is `eos` (-1: never) or its loss field, if there is one at byte `field`, is 0."""
    for i in range(len(out)):
        out[i] = 1.0
    if eos >= 0:
        for i in range(len(out)):
            if labels[i] == eos:
                out[i] = 0.0
    if field >= 0:
        for i in range(len(out)):
            if data[at + i * item + field] == 0:
                out[i] = 0.0
