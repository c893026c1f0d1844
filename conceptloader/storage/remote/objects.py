"""The source of object stores: neighbouring ranges in one request, a cache of blocks and reading ahead."""

import itertools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from conceptloader.errors import ConfigError
from conceptloader.storage.objects import Objects, Part
from conceptloader.storage.remote.blocks import memory_blocks
from conceptloader.storage.remote.stores import store_of
from conceptloader.storage.source import Expected, Range
from conceptloader.storage.threads import Task

_HOLE = 1 << 16  # wanted ranges this far apart are read together
_LARGEST = 1 << 23  # of what is put together
_numbers = itertools.count()


class RemoteObjects(Objects):
    """Everything but what is read once goes through a cache of blocks in memory.

    Options come from the environment, so that every process of a job has them. Raises: ConfigError for those.
    """

    def __init__(self, check: bool = True) -> None:
        super().__init__(check)
        self.connections = _option("CONNECTIONS", 64)
        self._memory_bytes = _option("MEMORY_BYTES", 128 << 20)
        self.kept_bytes = self._memory_bytes // 8
        self._number = next(_numbers)
        self._ahead: dict[str, list[tuple[Range, Task[bytes]]]] = defaultdict(list)

    def renew(self) -> None:
        """See forks.Renewed."""
        super().renew()
        memory_blocks.cache_clear()
        self._ahead.clear()

    def get(self, url: str, offset: int, size: int) -> Part:
        """See Objects."""
        return store_of(url).get(url, offset, size)

    def ranges(self, wanted: Iterable[Range]) -> Iterator[bytes]:
        """See Objects; neighbours are one request."""
        wanted = list(wanted)
        if len(wanted) == 1:
            yield self.read(*wanted[0])
            return
        together, which = _together(wanted)
        tasks = self.submit(self.read, together)
        for (_, offset, size), k in zip(wanted, which, strict=True):
            at = offset - together[k][1]
            yield tasks[k].result()[at : at + size]

    @contextmanager
    def reading_ahead(self, wanted: Iterable[Range]) -> Iterator[None]:
        """Begin to read these; reads in the block that lie within them wait for that."""
        together = _together(wanted)[0]
        mine = list(zip(together, self.submit(super().read, together), strict=True))
        for one in mine:
            self._ahead[one[0][0].path].append(one)
        try:
            yield
        finally:
            for one in mine:
                self._ahead[one[0][0].path].remove(one)

    def read(self, file: Expected, offset: int, size: int) -> bytes:
        """See Objects."""
        for (_, start, length), task in self._ahead.get(file.path, ()):
            if start <= offset and offset + size <= start + length:
                return task.result()[offset - start : offset - start + size]
        return super().read(file, offset, size)

    def fetch(self, file: Expected, offset: int, size: int) -> bytes:
        """See Objects."""
        fetch = partial(super().fetch, file)
        if file.once:
            return fetch(offset, size)
        memory = memory_blocks(self._memory_bytes, self.block_bytes)
        return memory.read(f"{self._number} {file.path}", file.size, offset, size, fetch)


def _option(name: str, default: int) -> int:
    key = f"CONCEPTLOADER_REMOTE_{name}"
    text = os.environ.get(key, str(default))
    if not text.isdecimal() or not int(text):
        raise ConfigError(key, repr(text), "an integer of at least 1", f"set {key}=1 or more, or unset it")
    return int(text)


def _together(wanted: Iterable[Range]) -> tuple[list[Range], list[int]]:
    """Ranges that overlap or lie near each other as one, up to a size; for each that is wanted, in which one it is."""
    wanted = list(wanted)
    found, which = list[Range](), [0] * len(wanted)
    for i in sorted(range(len(wanted)), key=lambda i: (wanted[i][0].path, *wanted[i][1:])):
        file, start, size = wanted[i]
        if found and found[-1][0].path == file.path:
            _, first, length = found[-1]
            end = max(first + length, start + size)
            if start <= first + length + _HOLE and end - first <= _LARGEST:
                found.pop()
                start, size = first, end - first
        found.append((file, start, size))
        which[i] = len(found) - 1
    return found, which
