"""Where the bytes of files come from: what a manifest expects of a file, and the source of local files.

A local file is read through a descriptor, an object of a store by requests (objects.py).
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from conceptloader.base.lazy import lazy
from conceptloader.errors import FormatError, ReadError
from conceptloader.storage.handles import HANDLES, Handles, OpenTable
from conceptloader.storage.reads import named, open_file, read_at, retrying
from conceptloader.storage.sample import open_sample

_REPLACED = "the file was replaced while it was in use: restore it, run `conceptloader verify DATASET`, then restart"
_CHANGED = (
    "the file is corrupt, or was replaced by another of its size: restore it, or build the dataset into another "
    "directory; `conceptloader verify DATASET --full` finds every such file"
)


@dataclass(frozen=True, slots=True)
class Expected:
    """A file as a manifest describes it.

    path: or URL. sample: checksum. mtime_ns: of a file that was adopted. once: no part of it is likely to be read again
    soon, so that none is worth a place in memory. admit: asked once the file is open, or if it is not the one expected;
    raises if no file of its dataset may be read. opener: of a local file.
    """

    path: str
    size: int
    sample: str
    mtime_ns: int | None = None
    once: bool = False
    admit: Callable[[], object] = bool
    opener: Callable[[str], int] = open_file

    def other_size(self, found: int, remedy: str) -> FormatError:
        return FormatError(self.path, f"{found} bytes", f"{self.size} as the manifest says", remedy)

    def check_sample(self, found: str) -> None:
        """Raises: FormatError unless it is the one that the manifest says."""
        if found != self.sample:
            rule = f"{self.sample} as the manifest says"
            raise FormatError(self.path, f"sample checksum {found}", rule, _CHANGED)

    def check(self, found: os.stat_result, before: os.stat_result | None = None) -> None:
        """Check that a file is the one that the manifest describes.

        Raises: FormatError unless it is as large, and an adopted one as old, as the manifest says, and as old as when
        it was first opened.
        """
        if found.st_size != self.size:
            raise self.other_size(found.st_size, "the file is corrupt or incomplete: copy or build it again")
        if self.mtime_ns is not None and found.st_mtime_ns != self.mtime_ns:
            raise FormatError(
                self.path,
                f"a modification time of {found.st_mtime_ns} ns",
                f"{self.mtime_ns} as when it was adopted",
                "run `conceptloader adopt` again, or restore its time (touch -d) if the content is the same",
            )
        if before is not None and before.st_mtime_ns != found.st_mtime_ns:
            raise FormatError(
                self.path,
                f"a modification time of {found.st_mtime_ns} ns",
                f"{before.st_mtime_ns} as when it was first opened, since no file of a dataset ever changes",
                _REPLACED,
            )


Range = tuple[Expected, int, int]
"""Bytes of a file: from this offset on, so many."""


class LocalFiles:
    """A source of files on this machine, opened and checked when they are first read. Keys of the table are paths.

    check: compare the content of files with the manifest when they are first opened.
    """

    def __init__(self, check: bool = True, handles: Handles = HANDLES) -> None:
        self._check, self._handles = check, handles
        self._opened: dict[str, os.stat_result] = {}  # when they were first opened

    @lazy
    def table(self) -> OpenTable:
        """Of what is open. Many datasets are opened of which nothing is read."""
        return OpenTable({}, self._handles)

    def ranges(self, wanted: Iterable[Range]) -> Iterator[bytes]:
        """Exactly these bytes of each, in this order. Safe to use from many threads.

        Raises: FormatError for a file that is not as expected, ReadError for one that cannot be read, after attempts
        enough for what may pass: each opens it again.
        """
        return (retrying(partial(self._attempt, *one)) for one in wanted)

    def _attempt(self, file: Expected, offset: int, size: int) -> bytes:
        table = self.table
        clock, descriptor = self.begin(file)
        try:
            return read_at(descriptor, offset, size, file.path)
        except ReadError:
            with table.handles.lock:
                if table.descriptors.get(file.path) == [descriptor]:  # else another thread has opened it again
                    table.close(file.path)
            raise
        finally:
            table.handles.end(clock)
            table.handles.shrink()

    def begin(self, file: Expected) -> tuple[int, int]:
        """(clock, descriptor) of a read, which ends with `end` of the handles."""
        table, handles = self.table, self.table.handles
        with handles.lock:
            if file.path in table.descriptors:
                return self._use(file.path)
        opened = handles.open(lambda: self.open(file))  # outside the lock: it may take long on a network
        try:
            file.admit()
        except BaseException:
            os.close(opened)
            raise
        with handles.lock:
            if file.path in table.descriptors:  # another thread was faster
                os.close(opened)
            else:
                table.put(file.path, opened)
            return self._use(file.path)

    def _use(self, path: str) -> tuple[int, int]:
        clock = self.table.used[path] = self.table.handles.begin()
        return clock, self.table.descriptors[path][0]

    def open(self, file: Expected) -> int:
        """A descriptor of the caller's own, of the file that the manifest means, and later that was opened before.

        A file keeps its size, its time and its content. Its inode number may change, as when a network file system is
        mounted again: then the content decides. Whoever reads from it asks `file.admit` between.
        """
        path, descriptor = file.path, -1
        try:
            descriptor = file.opener(path)
            with named(path, "looked at"):
                found = os.fstat(descriptor)
            before = self._opened.get(path)
            file.check(found, before)
            if before is not None and os.path.samestat(found, before):
                return descriptor
            if before is not None or self._check:
                file.check_sample(open_sample(descriptor, found.st_size, path))
        except BaseException as error:
            if descriptor >= 0:
                os.close(descriptor)
            if isinstance(error, FormatError) or (isinstance(error, ReadError) and error.errno == errno.ENOENT):
                file.admit()  # that its dataset was rebuilt says more
            raise
        self._opened[path] = found
        return descriptor

    def close(self) -> None:
        """Let go of what is open; it is opened again when needed."""
        for path in list(self.table.descriptors):
            self.table.close(path)
