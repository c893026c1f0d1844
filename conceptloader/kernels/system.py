"""What kernels need from outside: libc's pread, and memory at an address. Linux, glibc or musl, little-endian.

What kernels share with other threads, and in which order these see it: "Memory order" in design/architecture.md.
"""

from typing import Annotated, Any

import numpy as np

from conceptloader.kernels.kernel import Array, Lowered, inlined, inner, kernel
from conceptloader.kernels.records import HELD, Call

Code = Any
# What a kernel returns: of several things that it tries in turn the largest. Typed: a plain number would be a type of
# its own, and its users compiled once more for it.
OK: Code = np.int64(0)
WANTS: Code = np.int64(1)  # files or bytes of objects, which Call.wants lists, or what was announced to the system
GROW: Code = np.int64(2)  # room: for `value` values of ragged track `track`; for more pieces of documents if that is -1
FAILED: Code = np.int64(3)  # a read; `value` is its errno, or -1 if the file ends early
WRONG: Code = np.int64(4)  # a file breaks the format, or the order cannot be followed; see `wrong`

# Of `take`; the codes before are the READABLE_TOKENS. The first three make float32, the last one int32.
HALF: Code = np.int64(5)
SINGLE: Code = np.int64(6)
BRAIN: Code = np.int64(7)
SHORT: Code = np.int64(8)

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

load_acquire: Any = Lowered("load_acquire")
"""load_acquire(array, row, column): an item that other threads store meanwhile; what follows sees what came before."""

store_release: Any = Lowered("store_release")
"""store_release(array, row, column, value): store an item after all that this thread has done, also on Arm."""


@kernel
def publish(files: Annotated[Array, np.int32, 2], row: int, column: int, descriptor: int) -> None:
    """Let kernels that run meanwhile read a file.

    On Arm a plain store may be seen before those that the system made of `open`: a read would find no such file.
    """
    store_release(files, row, column, descriptor)


@inner
def wrong(call: Call, kind: int, place: int, value: int, limit: int) -> Code:
    """WRONG, and in the state what is; of which file, `row` and `column` say there."""
    state = call.state[0]
    state.kind = kind
    state.place = place
    state.value = value
    state.limit = limit
    return WRONG


@inlined
def set_all(array: Array, value: Any) -> None:
    """To a number."""
    for i in range(len(array)):
        array[i] = value


@inlined
def copy_each(source: int, step: int, target: Array, dtype: Any) -> None:
    """Numbers of a type that are `step` bytes apart."""
    for i in range(len(target)):
        target[i] = load(source + i * step, dtype)


@inner
def set_blank(out: Any, begin: Any, size: Any) -> None:
    """Bytes [begin, begin + size) of an array that a COLUMN describes to what it is blank with."""
    head = min(size, -begin & 7)
    words = array_at(out.address + begin + head, 0, (size - head) >> 3, np.int64)
    ends = array_at(out.address, begin, size, np.uint8)
    for i in range(head):
        ends[i] = out.blank >> (((begin + i) & 7) << 3)
    set_all(words, out.blank)
    for i in range(head + (len(words) << 3), size):
        ends[i] = out.blank >> (((begin + i) & 7) << 3)


@inner
def take(source: int, step: int, code: int, top: int, target: int, count: int) -> Code:
    """`count` numbers that are `step` bytes apart, from address `source` on, to address `target`, one after another.

    code: position of a token type in READABLE_TOKENS, which becomes int64; HALF or SINGLE, which become float32, as
    BRAIN does, which may be infinite; SHORT, which becomes int32; or the bytes of a number that stays what it is, below
    0. Returns: OK, or k if the k-th number, from 1 on, is the first that is not in [0, top], or not finite.
    `token | top - token` has its sign bit set if the token is negative or above `top`: no branch, so that the loops
    still become vector instructions.
    """
    out = array_at(target, 0, count * (code >= 0 and code < HALF), np.int64)
    floats = array_at(target, 0, count * (code >= HALF and code < BRAIN), np.float32)
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
    elif code == -1:
        copy_each(source, step, array_at(target, 0, count, np.uint8), np.uint8)
    elif code == -2:
        copy_each(source, step, array_at(target, 0, count, np.uint16), np.uint16)
    elif code == -4:
        copy_each(source, step, array_at(target, 0, count, np.uint32), np.uint32)
    elif code == -8:
        copy_each(source, step, array_at(target, 0, count, np.uint64), np.uint64)
    elif code >= BRAIN:
        shorts, wide = array_at(source, 0, count, np.uint16), array_at(target, 0, count, np.uint32)
        shift = np.uint32(16 if code == BRAIN else 0)
        for i in range(count):
            wide[i] = np.uint32(shorts[i]) << shift
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
def find_held(call: Call, file: int, start: int, stop: int) -> Any:
    """The block that these bytes begin in, if all are held, in as many neighbouring blocks as it takes; or -1."""
    held = array_at(call.state[0].held, 0, call.state[0].num_held, HELD)
    low, high = 0, len(held)
    while low < high:
        middle = (low + high) // 2
        if held[middle].file < file or (held[middle].file == file and held[middle].start <= start):
            low = middle + 1
        else:
            high = middle
    k = low - 1
    while start < stop:
        if k < 0 or k >= len(held) or held[k].file != file or not held[k].start <= start < held[k].stop:
            return -1
        start = held[k].stop
        k += 1
    return low - 1


@inner
def want(call: Call, row: int, column: int, start: int, stop: int) -> Code:
    """The sample at hand lacks these bytes. What finds no place in the list is wanted by the next pass."""
    state = call.state[0]
    if state.wants < len(call.wants):
        wanted = call.wants[state.wants]
        wanted.sample = state.sample
        wanted.row = row
        wanted.column = column
        wanted.start = start
        wanted.stop = stop
        state.wants += 1
    return WANTS


@inner
def need(call: Call, row: int, column: int, size: int, offset: int) -> Code:
    """WANTS unless `size` bytes at `offset` of a shard's file can be read.

    Whoever reads in several steps asks for all of them before: each pass is a round of requests to a store.
    """
    state, descriptor = call.state[0], load_acquire(call.files, row, column)
    state.row = row
    state.column = column
    state.at = offset
    state.size = size
    if descriptor < 0:
        return want(call, row, column, offset, offset + size)
    if descriptor == OBJECT:
        held = find_held(call, row * call.files.shape[1] + column, offset, offset + size)
        return want(call, row, column, offset, offset + size) if held < 0 else OK
    if state.announcing:
        _fadvise(descriptor, offset, size, WILL_NEED)
    # Where a sample before lacks something, this one is only asked for what it lacks: it is read once, in its turn.
    return WANTS if state.announcing or state.complete < state.sample else OK


@inner
def read(call: Call, row: int, column: int, target: Array, size: int, offset: int) -> Code:
    """`size` bytes, at least one, at `offset` of a shard's file into the beginning of `target`, in spite of signals."""
    state = call.state[0]
    target[size - 1] = 0  # so that builds with bounds checks find what has no room
    code = need(call, row, column, size, offset)
    if code != OK:
        return code
    descriptor, done = load_acquire(call.files, row, column), 0
    if descriptor < 0:  # another thread has just closed it
        return want(call, row, column, offset, offset + size)
    if descriptor == OBJECT:
        held = array_at(state.held, 0, state.num_held, HELD)
        k = find_held(call, row * call.files.shape[1] + column, offset, offset + size)
        while done < size:
            begin = offset + done - held[k].start
            part = min(size - done, held[k].stop - held[k].start - begin)
            source = array_at(held[k].address, begin, part, np.uint8)
            for i in range(part):
                target[done + i] = source[i]
            done += part
            k += 1
        return OK
    state.reads += 1
    state.read_bytes += size
    address = np.int64(target.ctypes.data)
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
