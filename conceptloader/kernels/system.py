"""What kernels need from outside: libc's pread, and memory at an address. Linux, glibc or musl, little-endian."""

from typing import Any

import numpy as np

from conceptloader.kernels.kernel import Array, Lowered, inner
from conceptloader.kernels.records import HELD, NO_ROOM, Call

Code = Any
# What a kernel returns. Typed: a plain number would be a type of its own, and its users compiled once more for it.
OK: Code = np.int64(0)
NOT_OPEN: Code = np.int64(1)  # the stream of shard `row`; nothing was done yet at `position`
CLOSED: Code = np.int64(2)  # any of its files, in the midst of what is at `position`
FAILED: Code = np.int64(3)  # a read; `value` is its errno, or -1 if the file ends early
FULL: Code = np.int64(4)  # the values of ragged track `track`, of which there are `value`
WRONG: Code = np.int64(5)  # a file breaks the format, or the order cannot be followed; see `wrong`
MORE: Code = np.int64(6)  # there are more pieces of documents in a block than there is room for
MISSING: Code = np.int64(7)  # the bytes of the read at hand: of an object in a store, or announced, to be read later

# What `take` makes float32 of; the codes before are the READABLE_TOKENS.
HALF: Code = np.int64(5)
SINGLE: Code = np.int64(6)

# Columns of Call.files; those of tracks are in their OUTPUT.
STREAM: Any = np.int64(0)
DOCUMENTS: Any = np.int64(1)
# In Call.files, where no descriptor is so large: an object in a store, of which Call.held has what is read.
OBJECT: Any = np.int32(1 << 30)

EINTR = np.int32(4)
WILL_NEED = np.int32(3)  # of posix_fadvise: the system reads on its own account, beside us
MAX_READ = 1 << 30  # Linux reads at most 2 GiB - 4 KiB in one call

_pread, _fadvise, _errno_location = map(Lowered, ("pread", "fadvise", "errno_location"))

array_at: Any = Lowered("array_at")
"""array_at(address, first, count, dtype): items [first, first + count) of the array at `address`; none at address 0."""

load: Any = Lowered("load")
"""load(address, dtype): the number at any address, also where an array of that type could not begin."""


@inner
def wrong(call: Call, kind: int, place: int, value: int, limit: int) -> Code:
    """WRONG, and in the state what is; of which file, `row` and `column` say there."""
    state = call.state[0]
    state.kind = kind
    state.place = place
    state.value = value
    state.limit = limit
    return WRONG


@inner
def take(source: int, step: int, code: int, top: int, target: int, count: int) -> Code:
    """`count` numbers that are `step` bytes apart, from address `source` on, to address `target`, one after another.

    code: position of a token type in READABLE_TOKENS, which becomes int64; HALF or SINGLE, which become float32; or the
    bytes of a number that stays what it is, below 0. Returns: OK, or k if the k-th number, from 1 on, is the first that
    is not in [0, top], or not finite. `token | top - token` has its sign bit set if the token is negative or above
    `top`: no branch, so that the loops still become vector instructions.
    """
    out = array_at(target, 0, count * (code >= 0 and code < HALF), np.int64)
    floats = array_at(target, 0, count * (code >= HALF), np.float32)
    signs = np.int64(0)
    if code == 1 and step == 2:
        shorts = array_at(source, 0, len(out), np.uint16)
        for i in range(len(out)):
            token = np.int64(shorts[i])
            out[i] = token
            signs |= token | top - token
    elif code == 2 and step == 4:
        words = array_at(source, 0, len(out), np.uint32)
        for i in range(len(out)):
            token = np.int64(words[i])
            out[i] = token
            signs |= token | top - token
    elif code < 0:
        raw = array_at(target, 0, count * -code, np.uint8)
        for i in range(len(raw)):
            raw[i] = load(source + i // -code * step + i % -code, np.uint8)
    elif code >= HALF:
        words = array_at(target, 0, count, np.uint32)
        for i in range(len(floats)):
            if code == SINGLE:
                floats[i] = load(source + i * step, np.float32)
            else:
                half = load(source + i * step, np.uint16)  # which compiled code has no type for
                words[i] = np.uint32(half & 0x7FFF) << np.uint32(13) | np.uint32(half >> 15) << np.uint32(31)
                floats[i] *= np.float32(2.0**112)  # the exponents' offsets differ by it
                if half & 0x7FFF > 0x7BFF:
                    words[i] |= np.uint32(0x7F800000)  # nor is it a finite number there
            if not np.isfinite(floats[i]):
                signs = np.int64(-1)
    else:
        for i in range(len(out)):
            at = source + i * step
            if code == 0:
                token = np.int64(load(at, np.uint8))
            elif code == 1:
                token = np.int64(load(at, np.uint16))
            elif code == 2:
                token = np.int64(load(at, np.uint32))
            elif code == 3:
                token = np.int64(load(at, np.int32))
            else:
                token = load(at, np.int64)
            out[i] = token
            signs |= token | top - token
    if signs < 0:
        for i in range(len(out)):
            if out[i] | top - out[i] < 0:
                return np.int64(i + 1)
        for i in range(len(floats)):
            if not np.isfinite(floats[i]):
                return np.int64(i + 1)
    return OK


@inner
def copy_held(call: Call, row: int, column: int, target: Array, size: int, offset: int) -> Code:
    """The same from memory, out of as many neighbouring blocks as it takes. MISSING unless all of them are there."""
    held = array_at(call.state[0].held, 0, call.state[0].num_held, HELD)
    file = row * call.files.shape[1] + column
    low, high = 0, len(held)
    while low < high:
        middle = (low + high) // 2
        if held[middle].file < file or (held[middle].file == file and held[middle].start <= offset):
            low = middle + 1
        else:
            high = middle
    done, k = 0, low - 1
    while done < size:
        at = offset + done
        if k < 0 or k >= len(held) or held[k].file != file or not held[k].start <= at < held[k].stop:
            return MISSING
        part = min(size - done, held[k].stop - at)
        source = array_at(held[k].address, at - held[k].start, part, np.uint8)
        for i in range(part):
            target[done + i] = source[i]
        done += part
        k += 1
    return OK


@inner
def read(call: Call, row: int, column: int, target: Array, size: int, offset: int) -> Code:
    """`size` bytes at `offset` of a shard's file into the beginning of `target`, whatever interrupts it."""
    state = call.state[0]
    state.row = row
    state.column = column
    state.at = offset
    state.size = size
    if size > len(target) or offset < 0:
        return wrong(call, NO_ROOM, offset, size, len(target))
    descriptor = call.files[row, column]
    if descriptor < 0:
        return CLOSED
    if descriptor == OBJECT:
        return copy_held(call, row, column, target, size, offset)
    if state.announced < state.sample:
        state.announced = state.sample
        _fadvise(descriptor, offset, size, WILL_NEED)
        return MISSING
    state.reads += 1
    state.read_bytes += size
    address = np.int64(target.ctypes.data)
    done = 0
    while done < size:
        part = min(size - done, MAX_READ)
        got = _pread(descriptor, np.uintp(address + done), np.uintp(part), offset + done)
        if got > 0:
            done += got
            continue
        error = array_at(_errno_location(), 0, 1, np.int32)[0] if got < 0 else np.int32(-1)
        if error != EINTR:
            state.value = error
            return FAILED
    return OK
