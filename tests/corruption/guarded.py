"""Memory that ends at a page which must not be touched: a kernel that goes one byte too far ends the process."""

import ctypes
import math
import mmap

import numpy as np

from conceptloader.loader.batch import workspace as engine
from conceptloader.loader.batch.layout import BatchLayout, Carving

PAGE = mmap.PAGESIZE
_carve = BatchLayout.carve
_libc = ctypes.CDLL(None, use_errno=True)
_guards = {}  # size of a block -> its guard pages


def protect(block, offset):
    address = int(block.__array_interface__["data"][0]) + int(offset)
    if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")


def guarded(shape, dtype=float):
    """np.empty, in front of a guard page."""
    dtype = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    size = math.prod(shape) * dtype.itemsize
    room = -(-max(size, 1) // PAGE) * PAGE
    block = np.frombuffer(mmap.mmap(-1, room + PAGE), np.uint8)
    protect(block, room)
    return block[room - size : room].view(dtype).reshape(shape)


def guarded_copy(array):
    copy = guarded(array.shape, array.dtype)
    copy[...] = array
    return copy


def carve(layout, samples):
    """BatchLayout.carve with every array in front of a guard page of its own."""
    specs = _carve(layout, samples).specs
    offsets, guards, end = {}, [], 0
    for name, spec in specs.items():
        size = math.prod(spec.shape) * spec.dtype.itemsize
        end += -(-max(size, 1) // PAGE) * PAGE
        offsets[name] = end - size
        guards.append(end)
        end += PAGE
    _guards[end] = guards
    return Carving(specs=specs, offsets=offsets, size=end)


def allocate(size):
    block = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    for guard in _guards[size]:
        protect(block, guard)
    return block


class _GuardedNumpy:
    """numpy for the engine's own buffers."""

    def __getattr__(self, name):
        return getattr(np, name)

    empty = staticmethod(guarded)

    @staticmethod
    def zeros(shape, dtype=float):
        return guarded(shape, dtype)  # a new mapping is zero


def install(patch):
    """Let every buffer of the engine, and every array of its batches, end at a guard page."""
    patch.setattr(engine, "np", _GuardedNumpy())
    patch.setattr(BatchLayout, "carve", carve)


def guard_tables(reader):
    for name in ("shards", "layouts", "tracks", "members", "left_out", "runs"):
        object.__setattr__(reader._tables, name, guarded_copy(getattr(reader._tables, name)))
