"""Positioned reads of local files: a bounded cache of descriptors, each pinned while it is in use.

Files are read with pread, never mapped: a random window of a cold mapped file costs a thousand times more than a read,
and a file that is truncated under a mapping ends the process with SIGBUS instead of an error.
"""

import errno
import logging
import os
import resource
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from conceptloader.errors import FormatError, ReadError

logger = logging.getLogger(__name__)

T = TypeVar("T")

# What reads come down to, as names of their own: tests of faults put others in their place.
pread, open_descriptor, sleep = os.pread, os.open, time.sleep

_MAX_PREAD = 1 << 30  # Linux reads at most 2 GiB - 4 KiB in one call

# Faults that may pass: a signal, a medium or a server that hiccups, a handle that went stale when a server restarted.
HEALING = frozenset(
    {errno.EINTR, errno.EAGAIN, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ECONNRESET}
    | {errno.ECONNABORTED, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.ENETDOWN}
)
BACKOFF_S = (0.01, 0.04, 0.16, 0.64, 2.5, 10.0, 30.0)
"""Seconds before each further attempt; 43 s in all, far below the loader's timeout_s."""


def retrying(action: Callable[[], T], progress: Callable[[], object] = bool) -> T:
    """`action()`, again and again while it fails with what may pass, as often as BACKOFF_S says.

    progress: how far an action of many reads has come. When that is not where it was at the last failure, what failed
    then has passed, and attempts are counted anew.
    Raises: its ReadError, with the number of attempts when it did not pass.
    """
    failed, failed_at = 0, object()
    while True:
        try:
            return action()
        except ReadError as error:
            if error.errno not in HEALING:
                raise
            if (now := progress()) != failed_at:
                failed, failed_at = 0, now
            if failed == len(BACKOFF_S):
                place = "the store and the network" if "://" in str(error.strerror) else "the file system"
                attempts = f"failed {failed + 1} times in {sum(BACKOFF_S):.0f} s; check {place}"
                raise ReadError(error.errno, f"{error.strerror}; {attempts}") from error
            logger.warning("%s; trying again in %g s", error.strerror, BACKOFF_S[failed])
        sleep(BACKOFF_S[failed])
        failed += 1


def read_at(descriptor: int, offset: int, size: int, name: str) -> bytes:
    """Exactly `size` bytes from `offset` on, put together from short reads. Every positioned read of the project's
    Python code is this call.

    Raises: ReadError when the operating system fails or the file ends early; it names file and offset.
    """
    parts: list[bytes] = []
    thread = threading.get_ident()
    _waiting[thread] = name, offset, size
    try:
        while True:
            try:
                part = pread(descriptor, min(size, _MAX_PREAD), offset)
            except OSError as error:
                message = f"{name}: cannot read {size} bytes at offset {offset}: {error.strerror}"
                raise ReadError(error.errno, message) from error
            if len(part) == size and not parts:
                return part
            if not part and size:
                raise ReadError(
                    errno.ENODATA,
                    f"{name}: found the end at byte {offset}, expected {size} more bytes; "
                    "the file was truncated after it was opened: restore it",
                )
            parts.append(part)
            offset += len(part)
            size -= len(part)
            if not size:
                return b"".join(parts)
    finally:
        _waiting.pop(thread, None)


_waiting: dict[int, tuple[str, int, int]] = {}  # by thread: file, offset, bytes; no bytes while it is opened


def waits_for(thread: int) -> str | None:
    """What this thread waits for in `read_at` or `open_file`, for a log; None if it is in neither."""
    name, offset, size = _waiting.get(thread, (None, 0, 0))
    if name is None:
        return None
    return f"{size} bytes at offset {offset} of {name}" if size else f"the opening of {name}"


def read_file(path: str, limit: int) -> bytes:
    """A whole small file (a manifest, a vocabulary).

    Raises: ReadError if it cannot be read, FormatError if it is larger than `limit` bytes.
    """

    def whole() -> bytes:
        descriptor = open_file(path)
        try:
            wanted = min(os.fstat(descriptor).st_size, limit) + 1
            parts, offset = [], 0
            while offset < wanted and (part := pread(descriptor, min(wanted - offset, _MAX_PREAD), offset)):
                parts.append(part)
                offset += len(part)
            return b"".join(parts)
        except OSError as error:
            raise ReadError(error.errno, f"{path}: cannot be read: {error.strerror}") from error
        finally:
            os.close(descriptor)

    data = retrying(whole)
    if len(data) > limit:
        raise FormatError(f"{path}: found more than {limit} bytes, expected at most that; this is not such a file")
    return data


def open_file(path: str) -> int:
    """A read-only descriptor. Raises: ReadError naming the file."""
    thread = threading.get_ident()
    _waiting[thread] = path, 0, 0
    try:
        # Not blocking: a fifo in place of a file must not wait for a writer.
        return open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ReadError(error.errno, f"{path}: cannot be opened: {error.strerror}") from error
    finally:
        _waiting.pop(thread, None)


def file_status(descriptor: int, path: str) -> os.stat_result:
    """Raises: ReadError naming the file."""
    try:
        return os.fstat(descriptor)
    except OSError as error:
        raise ReadError(error.errno, f"{path}: cannot be looked at: {error.strerror}") from error


class PinnedFile:
    """An open file and the number of its current users. stale: to be closed with its last user, and not used again."""

    __slots__ = ("descriptor", "pins", "stale")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.pins = 1
        self.stale = False


class DescriptorCache:
    """At most `capacity` open files that are not in use, closed least recently used first.

    A descriptor is pinned from lookup to release. Without that, another thread may close it in between and the kernel
    may hand out the same number for another file: the read then returns wrong bytes, silently.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[Hashable, PinnedFile] = OrderedDict()
        self._lock = threading.Lock()
        _caches.add(self)

    def forget_threads(self) -> None:
        """In a forked child: the lock may have been held, and entries pinned, by threads that do not exist here."""
        self._lock = threading.Lock()
        for entry in self._entries.values():
            entry.pins = 0

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def pinned(self, key: Hashable, opener: Callable[[], int]) -> Iterator[int]:
        """The descriptor of `key`, kept open until the block ends; `opener` is called when it is not in the cache."""
        entry = self.acquire(key, opener)
        try:
            yield entry.descriptor
        finally:
            self.release(entry)

    def acquire(self, key: Hashable, opener: Callable[[], int]) -> PinnedFile:
        """Like `pinned`, for a pin that outlives a block; every acquire needs its `release`."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                entry.pins += 1
                self._entries.move_to_end(key)
                return entry
        opened = self._open(opener)  # outside the lock: an open may take long on a network file system
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = PinnedFile(opened)
                self._evict()
                return entry
            entry.pins += 1
        os.close(opened)  # another thread was faster
        return entry

    def _open(self, opener: Callable[[], int]) -> int:
        try:
            return opener()
        except ReadError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        for cache in list(_caches):  # others have opened more than expected: make room, once
            cache.drop(lambda _: True)
        return opener()

    def release(self, entry: PinnedFile) -> None:
        with self._lock:
            entry.pins -= 1
            if entry.stale and not entry.pins:
                os.close(entry.descriptor)
            self._evict()

    def discard(self, key: Hashable, entry: PinnedFile) -> None:
        """Let the next `acquire` of `key` open the file anew. `entry` is pinned, and stays open while it is."""
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]
                entry.stale = True

    def _evict(self) -> None:
        """Close idle descriptors, oldest first. Those in use stay, even above capacity. Called with the lock held."""
        excess = len(self._entries) - self.capacity
        if excess <= 0:
            return
        for key in [key for key, entry in self._entries.items() if not entry.pins][:excess]:
            os.close(self._entries.pop(key).descriptor)

    def drop(self, belongs: Callable[[Hashable], bool]) -> None:
        """Close the idle descriptors whose key `belongs`; those in use are closed by a later eviction."""
        with self._lock:
            for key in [key for key, entry in self._entries.items() if not entry.pins and belongs(key)]:
                os.close(self._entries.pop(key).descriptor)


_caches: "weakref.WeakSet[DescriptorCache]" = weakref.WeakSet()
_shared: DescriptorCache | None = None
_shared_lock = threading.Lock()


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for cache in _caches:
        cache.forget_threads()


os.register_at_fork(after_in_child=_after_fork)


def shared_descriptors() -> DescriptorCache:
    """The cache of this process. It takes at most half of the descriptors that the process may open."""
    global _shared
    with _shared_lock:
        if _shared is None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            limit = 4096 if soft == resource.RLIM_INFINITY else soft
            _shared = DescriptorCache(max(8, min(1024, limit // 2)))
        return _shared
