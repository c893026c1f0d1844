"""The source of object stores: ranges of objects, with retries, a cache of blocks and reading ahead."""

import errno
import functools
import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from conceptloader.base.forks import renew_in_children
from conceptloader.base.terminal import masked
from conceptloader.errors import FormatError, ReadError
from conceptloader.remote.blocks import Settings, disk_cache, memory_cache
from conceptloader.remote.client import Allows
from conceptloader.remote.stores import object_size, read_range
from conceptloader.storage.reads import counts, retrying
from conceptloader.storage.sample import sample_checksum, sample_places
from conceptloader.storage.source import Expected, Range
from conceptloader.storage.threads import Task, shared_threads

logger = logging.getLogger(__name__)

_HOLE = 1 << 16  # wanted ranges this far apart are read together
_LARGEST = 1 << 23  # of what is put together
_INCOMPLETE = "the object is corrupt or incomplete: upload it again"
_numbers = itertools.count()


class RemoteObjects:
    """Everything but what is read once goes through a cache of blocks in memory.

    All of it goes through one on the disk, too, if the user wants that. Objects are checked by their size, a sample of
    their content, and a version that must not change.

    allows: which redirects are followed. check: compare samples with the manifest.
    """

    def __init__(self, allows: Allows, check: bool = True) -> None:
        self._allows, self._check = allows, check
        self.settings = Settings()
        self._number = next(_numbers)
        self._versions: dict[str, str | None] = {}
        self._met: set[str] = set()
        self._begin()
        renew_in_children(self)

    def _begin(self) -> None:
        """Nobody waits, and nothing is on its way."""
        self._meeting: dict[str, threading.Lock] = {}
        self._ahead: dict[str, list[tuple[int, int, Task[bytes]]]] = defaultdict(list)  # offset, size

    def renew(self) -> None:
        """See forks.Renewed."""
        memory_cache.cache_clear()
        disk_cache.cache_clear()
        self._begin()

    def ranges(self, wanted: Iterable[Range]) -> Iterator[bytes]:
        """Exactly these bytes of each, in this order. Requests for all of them go out at once, one for neighbours."""
        wanted = list(wanted)
        if len(wanted) == 1:
            yield self._get(*wanted[0])
            return
        together, which = _together(wanted)
        tasks = [self._submit(partial(self._get, *one)) for one in together]
        for (_, offset, size), k in zip(wanted, which, strict=True):
            at = offset - together[k][1]
            yield tasks[k].result()[at : at + size]

    @contextmanager
    def reading_ahead(self, wanted: Iterable[Range]) -> Iterator[None]:
        """Begin to read these; reads in the block that lie within them wait for that."""
        together = _together(wanted)[0]
        mine = [(one[0].path, (*one[1:], self._submit(partial(self._read, *one)))) for one in together]
        for path, one in mine:
            self._ahead[path].append(one)
        try:
            yield
        finally:
            for path, one in mine:
                self._ahead[path].remove(one)

    def blocks(self, file: Expected, offset: int, size: int) -> list[tuple[int, int]]:
        """(start, stop) of what to read for these bytes: just them, or whole blocks of what may be read again."""
        if file.once:
            return [(offset, offset + size)]
        unit = memory_cache(self.settings.memory_bytes).block_bytes
        return [(at, min(at + unit, file.size)) for at in range(offset - offset % unit, offset + size, unit)]

    def _submit(self, read: Callable[[], bytes]) -> Task[bytes]:
        return shared_threads("conceptloader requests", self.settings.connections).submit(read)

    def _get(self, file: Expected, offset: int, size: int) -> bytes:
        for start, length, task in self._ahead.get(file.path, ()):
            if start <= offset and offset + size <= start + length:
                return task.result()[offset - start : offset - start + size]
        return self._read(file, offset, size)

    def _read(self, file: Expected, offset: int, size: int) -> bytes:
        if not size:
            return b""
        directory = self.settings.cache_dir
        if self._check or directory is not None:
            self._meet(file)
        fetch, version = partial(self._fetch, file), self._versions.get(file.path)
        if directory is not None and version is None:
            _tell_of_no_version("/".join(file.path.split("/")[:3]))
        elif directory is not None:
            cache, name = disk_cache(directory, self.settings.cache_bytes), f"{file.path} {file.size} {version}"
            return cache.read(name, file.size, offset, size, fetch)
        if file.once:
            return fetch(offset, size)
        cache, name = memory_cache(self.settings.memory_bytes), f"{self._number} {file.path}"
        return cache.read(name, file.size, offset, size, fetch)

    def _meet(self, file: Expected) -> None:
        """Once for each object, before anything of it is used.

        Asks for its version, and whether it is the one that the manifest means, from the store itself, not from a
        cache. Later its version tells: every answer of a store carries it.
        """
        if file.path in self._met:
            return
        with self._meeting.setdefault(file.path, threading.Lock()):
            if file.path in self._met:
                return
            places = sample_places(file.size) if self._check else ((0, 1),)
            # Threads of their own: their tasks wait for nothing but the store.
            threads = shared_threads("conceptloader samples", self.settings.connections)
            parts = dict(zip(places, threads.map(lambda place: self._fetch(file, *place), places), strict=True))
            if self._check:
                file.admit()  # now: any other version is refused
                file.check_sample(sample_checksum(file.size, lambda offset, size: parts[offset, size]))
            self._met.add(file.path)

    def _fetch(self, file: Expected, offset: int, size: int) -> bytes:
        return retrying(partial(self._attempt, file, offset, size))

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
            raise ReadError(file.path, f"{len(part.data)} bytes at offset {offset}", str(size), errno=errno.EIO)
        known = self._versions.setdefault(file.path, part.version)
        if part.version != known:
            raise FormatError(
                file.path, f"version {part.version}", f"{known} as when it was first read",
                "the object was replaced while it was in use: restore it, then restart",
            )  # fmt: skip
        counts["bytes"] += size
        return part.data


@functools.cache
def _tell_of_no_version(store: str) -> None:
    """Once a process: what the disk has might be of another version."""
    logger.warning("%s: no versions of objects (ETag, Last-Modified): the disk cache is not used for it", masked(store))


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
