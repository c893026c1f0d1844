"""The open files of a process: one LRU for everything that reads, and closing that no read can notice.

Closing a file while another thread is between looking its number up and reading would, once the number is given out
again, read another file. So a descriptor that leaves is closed only when every read that was under way then has ended;
reads are numbered by a clock, and so is what leaves.
"""

import errno
import itertools
import os
import resource
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from conceptloader.base.forks import hold_while_forking, renew_in_children
from conceptloader.errors import ReadError

MAX_OPEN = 16_384
_SOFT_LIMIT = 65_536


class Handles:
    """About `capacity` open files, by default what the system's limit allows; the least recently used go first.

    They are closed by `shrink`, once a sample is read, which may need more than that. Those of reads under way come on
    top, up to twice the capacity; from there on an open waits for such reads to end.
    """

    lock: threading.Condition

    def __init__(self, capacity: int | None = None) -> None:
        if capacity is not None:
            self.capacity = capacity
        self.lock = threading.Condition(threading.RLock())
        self.clock = itertools.count(1)
        self._kept = 0
        self._retired: deque[tuple[int, int]] = deque()
        self._active: set[int] = set()
        self.tables: weakref.WeakSet[OpenTable] = weakref.WeakSet()

    @cached_property
    def capacity(self) -> int:
        """Raises the soft limit on open files first, as far as the hard one allows."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _SOFT_LIMIT if hard == resource.RLIM_INFINITY else min(hard, _SOFT_LIMIT)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        limit = _SOFT_LIMIT if soft == resource.RLIM_INFINITY else soft
        # Up to twice as many are open while they are read; the rest is left to everyone else.
        return max(16, min(MAX_OPEN, limit // 4))

    @property
    def count(self) -> int:
        """Open files, with those that wait to be closed."""
        return self._kept + len(self._retired)

    def begin(self) -> int:
        """The clock of a read that is about to use descriptors; every begin needs its `end`."""
        with self.lock:
            clock = next(self.clock)
            self._active.add(clock)
        return clock

    def end(self, clock: int) -> None:
        with self.lock:
            self._active.discard(clock)
            if self._retired:
                self._close_retired()

    def shrink(self) -> None:
        """Close what was used least recently if there is more than the capacity: all that a reader needs is read."""
        with self.lock:
            if self._kept > self.capacity:
                self._evict(self.capacity - self.capacity // 8)

    def open(self, opener: Callable[[], int]) -> int:
        """What `opener` returns. Not to be called between begin and end.

        Raises: what it raises, ReadError for a limit of the system only if that is met with all idle files closed.
        """
        with self.lock:
            while self.count >= 2 * self.capacity and self._retired:
                self.lock.wait()
        try:
            return opener()
        except ReadError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        with self.lock:
            self._evict(0)
        return opener()

    def renew(self) -> None:
        """See forks.Renewed: reads of other threads do not exist here."""
        with self.lock:
            self._active.clear()
            self._close_retired()

    def _evict(self, target: int) -> None:
        """Close what was used least recently, until no more than `target` files are kept."""
        idle = [(int(table.used[key]), table, key) for table in self.tables for key in table.descriptors]
        for _, table, key in sorted(idle, key=lambda entry: entry[0]):
            if self._kept <= target:
                break
            table.close(key)

    def _retire(self, descriptors: Iterable[int]) -> None:
        clock = next(self.clock)
        for descriptor in descriptors:
            self._kept -= 1
            self._retired.append((clock, descriptor))
        self._close_retired()

    def _close_retired(self) -> None:
        oldest = min(self._active, default=None)
        while self._retired and (oldest is None or self._retired[0][0] < oldest):
            os.close(self._retired.popleft()[1])
            self.lock.notify_all()

    def _drop(self, descriptors: dict[Any, list[int]]) -> None:
        """A table is gone, and with it every read that could use its files."""
        with self.lock:
            for descriptor in itertools.chain.from_iterable(descriptors.values()):
                os.close(descriptor)
                self._kept -= 1


HANDLES = Handles()
"""Those of this process."""

hold_while_forking(HANDLES.lock)
renew_in_children(HANDLES)


class OpenTable:
    """The open files of one reader.

    descriptors: of each key. used: key -> clock of the last use; a dictionary, or an array if keys are its rows.
    Both are changed with the lock of the handles held.
    """

    def __init__(self, used: Any, handles: Handles = HANDLES) -> None:
        self.used, self.handles = used, handles
        self.descriptors: dict[Any, list[int]] = {}
        with handles.lock:
            handles.tables.add(self)
        # Not at exit: a thread may still be reading then, and the system closes everything.
        weakref.finalize(self, handles._drop, self.descriptors).atexit = False

    def put(self, key: Any, descriptor: int) -> None:
        """Called with the lock held."""
        self.used[key] = next(self.handles.clock)
        self.descriptors.setdefault(key, []).append(descriptor)
        self.handles._kept += 1

    def close(self, key: Any) -> None:
        """Take the files of a key out of the table; they are closed when nobody can be reading them."""
        with self.handles.lock:
            if key in self.descriptors:
                self.forget(key)
                self.handles._retire(self.descriptors.pop(key))

    def forget(self, key: Any) -> None:
        """Other holders of the descriptors of a key must not give them to reads that begin from now on."""
