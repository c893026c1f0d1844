"""A bounded cache of blocks of objects in memory, for small reads."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby

Key = tuple[str, int]  # an object, number of the block


class Blocks:
    """Ranges of objects, read block by block; what is missing side by side is fetched together.

    At most `capacity` bytes, least recently used first out. block_bytes: of every block but an object's last.
    """

    def __init__(self, capacity: int, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        # Threads that want the same block wait for the one that fetches it.
        self._locks = [threading.Lock() for _ in range(256)]
        self._capacity = capacity
        self._size = 0
        self._blocks: OrderedDict[Key, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, name: str, object_bytes: int, offset: int, size: int, fetch: Callable[[int, int], bytes]) -> bytes:
        """Bytes [offset, offset + size) of the object `name`; fetch(offset, size) gets them from the store."""
        unit = self.block_bytes
        first, last = offset // unit, (offset + size - 1) // unit
        with self._locks[hash((name, first)) % len(self._locks)]:
            found = [self._get((name, number)) for number in range(first, last + 1)]
            for missing, group in groupby(range(len(found)), lambda i: found[i] is None):
                numbers = list(group)
                if missing:
                    start = (first + numbers[0]) * unit
                    data = fetch(start, min((first + numbers[-1] + 1) * unit, object_bytes) - start)
                    for k, i in enumerate(numbers):
                        found[i] = block = data[k * unit : (k + 1) * unit]
                        self._put((name, first + i), block)
        whole = b"".join(block for block in found if block is not None)
        return whole[offset - first * unit : offset - first * unit + size]

    def _get(self, key: Key) -> bytes | None:
        with self._lock:
            data = self._blocks.get(key)
            if data is not None:
                self._blocks.move_to_end(key)
            return data

    def _put(self, key: Key, data: bytes) -> None:
        with self._lock:
            self._size += len(data) - len(self._blocks.pop(key, b""))
            self._blocks[key] = data
            while self._size > self._capacity:
                self._size -= len(self._blocks.popitem(last=False)[1])


@lru_cache(maxsize=4)
def memory_blocks(capacity: int, block_bytes: int) -> Blocks:
    """Those that all datasets of the process share."""
    return Blocks(capacity, block_bytes)
