"""The source of object stores: ranges of objects, with retries, a cache of blocks and reading ahead."""

import errno
import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from conceptloader.base.forks import renew_in_children
from conceptloader.base.terminal import masked
from conceptloader.errors import ReadError
from conceptloader.storage.blocks import Settings, disk_cache, memory_cache
from conceptloader.storage.http import Allows
from conceptloader.storage.reads import counts, retrying
from conceptloader.storage.sample import sample_checksum, sample_places
from conceptloader.storage.source import Expected, mismatch
from conceptloader.storage.stores import object_size, read_range
from conceptloader.storage.threads import Task, shared_threads

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_HOLE = 1 << 16  # wanted ranges this far apart are read together
_LARGEST = 1 << 23  # of what is put together
_INCOMPLETE = "the object is damaged or incomplete: upload it again"
_numbers = itertools.count()
_Ahead = tuple[int, int, Task[bytes]]  # bytes [start, stop) of an object that are on their way


class RemoteObjects:
    """Everything but what is read once goes through a cache of blocks in memory; everything through one on the disk, if
    the user wants that. Objects are checked by their size, a sample of their content, and a version that must not
    change.

    allows: which redirects are followed. check: compare samples with the manifest.
    """

    def __init__(self, allows: Allows, check: bool = True) -> None:
        self._allows, self._check = allows, check
        self.settings = Settings()
        self._number = next(_numbers)
        self._versions: dict[str, str | None] = {}
        self._checked: set[str] = set()
        self._begin()
        renew_in_children(self)

    def renew(self) -> None:
        """See forks.Renewed."""
        memory_cache.cache_clear()
        disk_cache.cache_clear()
        self._begin()

    def _begin(self) -> None:
        """Nobody waits, and nothing is on its way."""
        self._asking: dict[str, threading.Lock] = {}
        self._ahead: dict[str, list[_Ahead]] = {}
        self._lock = threading.Lock()

    def read(self, file: Expected, offset: int, size: int) -> bytes:
        """Exactly these bytes."""
        if not size:
            return b""
        for start, stop, task in self._ahead.get(file.path, ()):
            if start <= offset and offset + size <= stop:
                return task.result()[offset - start : offset - start + size]
        return self._read(file, offset, size)

    def blocks(self, file: Expected, offset: int, size: int) -> list[tuple[int, int]]:
        """(start, stop) of what to read for these bytes: just them, or whole blocks of what may be read again."""
        if file.once:
            return [(offset, offset + size)]
        unit = memory_cache(self.settings.memory_bytes).block_bytes
        return [(at, min(at + unit, file.size)) for at in range(offset - offset % unit, offset + size, unit)]

    def close(self) -> None:
        """Nothing is open."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """function(item) of all items at once, results in order: many reads take as long as one."""
        return shared_threads("conceptloader rows", self.settings.connections).map(function, items)

    @contextmanager
    def reading_ahead(self, ranges: Iterable[tuple[Expected, int, int]]) -> Iterator[None]:
        """Begin to read bytes [start, stop) of files, neighbours together; reads in the block wait for that."""
        threads = shared_threads("conceptloader requests", self.settings.connections)
        mine: list[tuple[str, _Ahead]] = []
        for file, start, stop in _merged(ranges):
            mine.append((file.path, (start, stop, threads.submit(self._read, file, start, stop - start))))
        with self._lock:
            for path, ahead in mine:
                self._ahead[path] = [*self._ahead.get(path, ()), ahead]
        try:
            yield
        finally:
            with self._lock:
                for path, ahead in mine:
                    self._ahead[path] = [other for other in self._ahead[path] if other is not ahead]

    def _read(self, file: Expected, offset: int, size: int) -> bytes:
        if self._check and file.path not in self._checked:
            self._check_content(file)

        def fetch(start: int, count: int) -> bytes:
            return retrying(lambda: self._attempt(file, start, count))

        directory, version = self.settings.cache_dir, None
        if directory is not None and (version := self._version(file)) is None:
            _tell_of_no_version("/".join(file.path.split("/")[:3]))
        if directory is not None and version is not None:
            name = f"{file.path} {file.size} {version}"
            cache = disk_cache(directory, self.settings.cache_bytes)
            return cache.read(name, file.size, offset, size, fetch)
        if not file.once:
            name = f"{self._number} {file.path}"
            return memory_cache(self.settings.memory_bytes).read(name, file.size, offset, size, fetch)
        return fetch(offset, size)

    def _check_content(self, file: Expected) -> None:
        """Whether an object is the one that the manifest means, from the store itself, not from a cache.

        Later its version tells: every answer of a store carries it.
        """
        with self._asking.setdefault(file.path, threading.Lock()):
            if file.path in self._checked:
                return

            def read(place: tuple[int, int]) -> bytes:
                return retrying(lambda: self._attempt(file, *place))

            places = sample_places(file.size)
            # Threads of their own: their tasks wait for nothing but the store.
            threads = shared_threads("conceptloader samples", self.settings.connections)
            parts = dict(zip(places, threads.map(read, places), strict=True))
            file.admit()  # now: any other version is refused
            file.check_sample(sample_checksum(file.size, lambda offset, size: parts[offset, size]))
            self._checked.add(file.path)

    def _version(self, file: Expected) -> str | None:
        """The version of an object, asked for once: what the disk has of another version is not used."""
        if file.path not in self._versions:
            with self._asking.setdefault(file.path, threading.Lock()):
                if file.path not in self._versions:
                    retrying(lambda: self._attempt(file, 0, 1))
        return self._versions[file.path]

    def _attempt(self, file: Expected, offset: int, size: int) -> bytes:
        try:
            part = read_range(file.path, offset, size, self._allows)
        except ReadError as error:
            if error.errno == errno.EIO:  # a range behind the end of an object is an error like any other
                found = object_size(file.path, self._allows)
                if found != file.size:
                    raise file.other_size(found, _INCOMPLETE) from error
            raise
        if part.size != file.size:
            raise file.other_size(part.size, _INCOMPLETE)
        if len(part.data) != size:
            raise ReadError(errno.EIO, f"{file.path}: found {len(part.data)} bytes at offset {offset}, expected {size}")
        known = self._versions.setdefault(file.path, part.version)
        if part.version != known:
            raise mismatch(
                file.path, f"version {part.version}", f"{known} as when it was first read",
                "the object was replaced while it was in use: restore it, then restart",
            )  # fmt: skip
        counts["bytes"] += size
        return part.data


@functools.cache
def _tell_of_no_version(store: str) -> None:
    """Once a process: what the disk has might be of another version."""
    logger.warning("%s: no versions of objects (ETag, Last-Modified): the disk cache is not used for it", masked(store))


def _merged(ranges: Iterable[tuple[Expected, int, int]]) -> list[tuple[Expected, int, int]]:
    """Ranges in order; those that overlap or lie near each other become one, up to a size."""
    result: list[tuple[Expected, int, int]] = []
    for file, start, stop in sorted(ranges, key=lambda wanted: (wanted[0].path, *wanted[1:])):
        if result and result[-1][0].path == file.path and start <= result[-1][2] + _HOLE:
            before = result[-1][1]
            if max(stop, result[-1][2]) - before <= _LARGEST:
                result[-1] = (file, before, max(stop, result[-1][2]))
                continue
        result.append((file, start, stop))
    return result
