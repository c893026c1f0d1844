"""Checksums of files: of the whole, and a spot checksum: whether one is as written, by reading 32 KiB for any size.

Places follow from the size alone: both ends, and one block in each of six equal parts in between, so that a change of a
third of the file, wherever it lies, is met for certain. Small files are read whole; there it is the file's checksum.
"""

import os
from collections.abc import Callable
from functools import lru_cache

import xxhash

from conceptloader.storage.reads import opened, read_at

BLOCK = 4096
PARTS = 6
WHOLE = (PARTS + 2) * BLOCK
"""Files up to this size are read whole."""


@lru_cache(maxsize=1024)  # many shards are equally large
def sample_places(size: int) -> tuple[tuple[int, int], ...]:
    """(offset, bytes) of what is read of a file of `size` bytes, in ascending order."""
    if size <= WHOLE:
        return ((0, size),) if size else ()
    places = [0]
    inner = size // BLOCK - 2
    for part in range(PARTS):
        low, high = 1 + part * inner // PARTS, 1 + (part + 1) * inner // PARTS
        key = size.to_bytes(8, "little") + part.to_bytes(8, "little")
        places.append((low + xxhash.xxh3_64_intdigest(key) % (high - low)) * BLOCK)
    return tuple((at, BLOCK) for at in (*places, size - BLOCK))


def sample_checksum(size: int, read: Callable[[int, int], bytes]) -> str:
    """Of a file of `size` bytes; read(offset, size) gives its bytes. Returns: 16 hexadecimal digits."""
    checksum = xxhash.xxh3_64()
    for place in sample_places(size):
        checksum.update(read(*place))
    return checksum.hexdigest()


def open_sample(descriptor: int, size: int, path: str) -> str:
    """The sample checksum of an open file of this size. Raises: ReadError."""
    for offset, count in sample_places(size):  # the system fetches all of them at once: reads would wait for each
        os.posix_fadvise(descriptor, offset, count, os.POSIX_FADV_WILLNEED)
    return sample_checksum(size, lambda offset, count: read_at(descriptor, offset, count, path))


def file_checksum(path: str) -> str:
    """The xxh3-64 of a whole file. Raises: ReadError."""
    checksum = xxhash.xxh3_64()
    with opened(path) as descriptor:
        while data := os.read(descriptor, 1 << 22):
            checksum.update(data)
    return checksum.hexdigest()
