"""Objects at URLs: what is made sure of for every store, and which class reads the URLs of a scheme."""

import errno
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from conceptloader.base.forks import renew_in_children
from conceptloader.base.packages import need
from conceptloader.errors import FormatError, ReadError
from conceptloader.storage.reads import counts, retrying
from conceptloader.storage.sample import sample_checksum, sample_places
from conceptloader.storage.source import Expected, Range
from conceptloader.storage.threads import Task, shared_threads

SCHEMES: dict[str, Callable[[bool], "Objects"]] = {}
"""Scheme of a URL -> subclass of Objects: `SCHEMES["my-scheme"] = MyStore`. All others are those of remote/."""
REMOTE = "conceptloader.storage.remote.objects"
_INCOMPLETE = "the object is corrupt or incomplete: upload it again"


def open_objects(url: str, check: bool) -> "Objects":
    """The source of a dataset. Raises: ConfigError that says which scheme there is nothing for."""
    scheme = url.partition("://")[0]
    missing = f"{url}: found the scheme {scheme}, and no {REMOTE}, which reads all that SCHEMES lacks"
    objects: Objects = (SCHEMES.get(scheme) or need(REMOTE, missing).RemoteObjects)(check)
    return objects


@dataclass(frozen=True)
class Part:
    """data: the bytes that were asked for, fewer at the object's end; size: of the whole object.

    version: changes when the object is replaced (an ETag, or a date), None if the store does not say.
    """

    data: bytes
    size: int
    version: str | None


class Objects:
    """The source of one dataset at a URL. A store is a subclass with a `get`; one of RemoteObjects has caches as well.

    Attempts are repeated here, and objects checked: by their size, a sample of their content before anything of it is
    used, and a version that must not change.

    check: compare samples with the manifest. connections: requests at a time. block_bytes: of what is asked for where
    it may be read again. kept_bytes: of such blocks, that a thread which makes batches keeps for the next ones.
    """

    connections, block_bytes, kept_bytes = 64, 1 << 16, 1 << 24

    def __init__(self, check: bool = True) -> None:
        self.check = check
        self._versions: dict[str, str | None] = {}
        self._met: set[str] = set()
        self._meeting: dict[str, threading.Lock] = {}
        renew_in_children(self)

    def get(self, url: str, offset: int, size: int) -> Part:
        """Bytes [offset, offset + size) of an object, and its size and version now; if size is 0, only these two.

        One attempt; many threads call this at once. Raises: ReadError, with an errno that tells what may pass (EIO)
        from what does not (ENOENT, EACCES).
        """
        raise NotImplementedError

    def ranges(self, wanted: Iterable[Range]) -> Iterator[bytes]:
        """See LocalFiles. Requests for all of them go out at once."""
        return (task.result() for task in self.submit(self.read, wanted))

    def submit(self, read: Callable[[Expected, int, int], bytes], wanted: Iterable[Range]) -> list[Task[bytes]]:
        """Read in the threads of requests."""
        threads = shared_threads("conceptloader requests", self.connections)
        return [threads.submit(read, *one) for one in wanted]

    def reading_ahead(self, wanted: Iterable[Range]) -> AbstractContextManager[None]:
        """Ranges that reads in the block will lie in, so that a source may begin to read them."""
        return nullcontext()

    def renew(self) -> None:
        """See forks.Renewed: nobody waits."""
        self._meeting.clear()

    def blocks(self, file: Expected, offset: int, size: int) -> list[tuple[int, int]]:
        """(start, stop) of what to read for these bytes: just them, or whole blocks of what may be read again."""
        if file.once:
            return [(offset, offset + size)]
        unit = self.block_bytes
        return [(at, min(at + unit, file.size)) for at in range(offset - offset % unit, offset + size, unit)]

    def read(self, file: Expected, offset: int, size: int) -> bytes:
        """Exactly these bytes."""
        if not size:
            return b""
        if self.check:
            self._meet(file)
        return self.fetch(file, offset, size)

    def _meet(self, file: Expected) -> None:
        """Once for each object, before anything of it is used: whether it is the one that the manifest means.

        The store itself is asked, not a cache. Later its version tells: every answer of a store carries it.
        """
        if file.path in self._met:
            return
        with self._meeting.setdefault(file.path, threading.Lock()):
            if file.path in self._met:
                return
            places = sample_places(file.size)
            # Threads of their own: their tasks wait for nothing but the store.
            threads = shared_threads("conceptloader samples", self.connections)
            parts = dict(zip(places, threads.map(lambda place: Objects.fetch(self, file, *place), places), strict=True))
            file.admit()  # now: any other version is refused
            file.check_sample(sample_checksum(file.size, lambda offset, size: parts[offset, size]))
            self._met.add(file.path)

    def fetch(self, file: Expected, offset: int, size: int) -> bytes:
        """Bytes of an object, by as many attempts as it takes. A class with a cache looks there first."""
        return retrying(partial(self._attempt, file, offset, size))

    def _attempt(self, file: Expected, offset: int, size: int) -> bytes:
        try:
            part = self.get(file.path, offset, size)
        except ReadError as error:
            if error.errno == errno.EIO:  # a range behind the end of an object is an error like any other
                found = self.get(file.path, 0, 0).size
                if found != file.size:
                    raise file.other_size(found, _INCOMPLETE) from error
            raise
        if part.size != file.size:
            raise file.other_size(part.size, _INCOMPLETE)
        if len(part.data) != size:
            raise ReadError(
                file.path,
                f"{len(part.data)} bytes at offset {offset}",
                str(size),
                errno=errno.EIO,
                fix="copy the object again, then run `conceptloader verify DATASET`",
            )
        version = part.version and part.version.removeprefix("W/")  # a proxy that compresses makes an ETag weak
        known = self._versions.setdefault(file.path, version)
        if version != known:
            raise FormatError(
                file.path, f"version {version}", f"{known} as when it was first read",
                f"restore the object {file.path}, which was replaced while it was in use, then restart",
            )  # fmt: skip
        counts["bytes"] += size
        return part.data
