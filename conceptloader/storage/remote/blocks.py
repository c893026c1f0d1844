"""Bounded caches of blocks of objects: in memory for small reads, on disk if the user gives a directory."""

import fcntl
import logging
import os
import secrets
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from itertools import groupby

import xxhash

from conceptloader.errors import ConfigError

log = logging.getLogger(__name__)

Key = tuple[str, int]  # which version of which object, number of the block
_CHECKSUM = 8
_SETLKW = 38  # F_OFD_SETLKW of Linux
_DISK_BLOCK = 1 << 18


class Blocks:
    """Ranges of objects, read block by block; what is missing side by side is fetched together.

    block_bytes: of every block but an object's last.
    """

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        # Threads that want the same block wait for the one that fetches it.
        self._locks = [threading.Lock() for _ in range(256)]

    def get(self, key: Key) -> bytes | None:
        raise NotImplementedError

    def put(self, key: Key, data: bytes) -> None:
        raise NotImplementedError

    def alone(self, key: Key) -> AbstractContextManager[None]:
        """Exclusive access to a block among processes, if they share it."""
        return nullcontext()

    def read(self, name: str, object_bytes: int, offset: int, size: int, fetch: Callable[[int, int], bytes]) -> bytes:
        """Bytes [offset, offset + size) of the object `name`; fetch(offset, size) gets them from the store."""
        unit = self.block_bytes
        first, last = offset // unit, (offset + size - 1) // unit
        with self._locks[hash((name, first)) % len(self._locks)], self.alone((name, first)):
            found = [self.get((name, number)) for number in range(first, last + 1)]
            for missing, group in groupby(range(len(found)), lambda i: found[i] is None):
                numbers = list(group)
                if missing:
                    start = (first + numbers[0]) * unit
                    data = fetch(start, min((first + numbers[-1] + 1) * unit, object_bytes) - start)
                    for k, i in enumerate(numbers):
                        found[i] = block = data[k * unit : (k + 1) * unit]
                        self.put((name, first + i), block)
        whole = b"".join(block for block in found if block is not None)
        return whole[offset - first * unit : offset - first * unit + size]


class MemoryBlocks(Blocks):
    """At most `capacity` bytes, least recently used first out."""

    def __init__(self, capacity: int, block_bytes: int) -> None:
        super().__init__(block_bytes)
        self._capacity = capacity
        self._size = 0
        self._blocks: OrderedDict[Key, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> bytes | None:
        with self._lock:
            data = self._blocks.get(key)
            if data is not None:
                self._blocks.move_to_end(key)
            return data

    def put(self, key: Key, data: bytes) -> None:
        with self._lock:
            self._size += len(data) - len(self._blocks.pop(key, b""))
            self._blocks[key] = data
            while self._size > self._capacity:
                self._size -= len(self._blocks.popitem(last=False)[1])


class DiskBlocks(Blocks):
    """One file per block, with a checksum; at most about `capacity` bytes, oldest in use first out.

    Any number of processes may share the directory: files appear whole, and any process that finds too much in
    it removes files. A block that is corrupt on the disk counts as absent.
    """

    def __init__(self, directory: str, capacity: int, block_bytes: int) -> None:
        super().__init__(block_bytes)
        self._directory, self._told = os.path.abspath(directory), False
        self._lock_file = os.path.join(self._directory, "lock")
        self._capacity = capacity
        self._lock = threading.Lock()
        try:
            os.makedirs(self._directory, exist_ok=True)
            self._size = self._trim()
        except OSError as error:
            raise ConfigError(
                directory,
                f"cannot be used as a cache: {error.strerror}",
                fix=f"pass another cache directory, or run `chmod u+rwx {directory}`",
            ) from error

    def _path(self, key: Key) -> str:
        name = xxhash.xxh3_128_hexdigest(f"{key[0]}\0{key[1]}\0{self.block_bytes}".encode())
        return os.path.join(self._directory, name[:2], name)

    def get(self, key: Key) -> bytes | None:
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                data = file.read()
            os.utime(path)
        except OSError:  # absent, removed meanwhile or unreadable: all the same, the object has it
            return None
        content, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
        return content if xxhash.xxh3_64_digest(content) == checksum else None

    @contextmanager
    def alone(self, key: Key) -> Iterator[None]:
        """Exclusive access to this block among threads and processes, so that it is fetched once.

        A lock on one byte of a file, of the open file, so that it ends with its process, and threads of two processes
        that wait for each other's blocks are no deadlock in the eyes of the system.
        """
        if os.path.exists(self._path(key)):
            yield
            return
        byte = xxhash.xxh3_64_intdigest(repr(key).encode()) >> 1
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with suppress(OSError):  # a file system without locks: fetched twice at worst
                fcntl.fcntl(descriptor, _SETLKW, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0))
            yield
        finally:
            os.close(descriptor)

    def put(self, key: Key, data: bytes) -> None:
        path = self._path(key)
        temporary = f"{path}.{secrets.token_hex(4)}.tmp"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(temporary, "xb") as file:
                file.write(data + xxhash.xxh3_64_digest(data))
            os.rename(temporary, path)
        except OSError as error:  # a full disk must not end a training: the cache just keeps less
            if os.path.exists(temporary):
                os.unlink(temporary)
            if not self._told:
                self._told = True
                why = "is read from the object store each time, until there is room"
                log.warning("%s: nothing can be kept there (%s): it %s", self._directory, error.strerror, why)
            return
        with self._lock:
            self._size += len(data) + _CHECKSUM
            if self._size > self._capacity:
                self._size = self._trim()

    def _trim(self) -> int:
        """Remove the blocks that were used longest ago, down to 9/10 of the capacity. Returns: bytes left."""
        found = []
        for part in os.scandir(self._directory):
            for entry in os.scandir(part.path) if part.is_dir() else ():
                with suppress(FileNotFoundError):  # another process trims, too
                    status = entry.stat()
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
        left = sum(size for _, size, _ in found)
        if left <= self._capacity:
            return left
        for _, size, path in sorted(found):
            if left <= self._capacity * 9 // 10:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
                left -= size
        return left


@lru_cache(maxsize=4)
def memory_blocks(capacity: int, block_bytes: int) -> MemoryBlocks:
    """Those that all datasets of the process share."""
    return MemoryBlocks(capacity, block_bytes)


@lru_cache(maxsize=4)
def disk_blocks(directory: str, capacity: int) -> DiskBlocks:
    return DiskBlocks(directory, capacity, _DISK_BLOCK)
