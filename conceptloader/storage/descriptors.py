"""The descriptors of a process: one budget for everything that reads files, and closing that no read can notice.

Closing a file while another thread is between looking its number up and reading would, once the number is given out
again, read another file. So a descriptor that leaves its table is closed only when every read that was under way then
has ended; reads are numbered by a clock, and so is what leaves.
"""

import errno
import itertools
import os
import resource
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from conceptloader.errors import ReadError

MAX_OPEN = 16_384
_SOFT_LIMIT = 65_536


class OpenTable:
    """The open files of one reader, some under each key.

    open_rows: key -> descriptors. used: key -> clock of the last use; a dictionary, or an array if keys are its rows.
    pins: keys whose files stay, and how often each was pinned. All are changed with the budget's lock held.
    """

    def __init__(self, used: Any, budget: "Budget | None" = None) -> None:
        self.used = used
        self.budget = budget or shared_budget()
        self.open_rows: dict[Any, list[int]] = {}
        self.pins: Counter[Any] = Counter()
        self.budget.add(self)

    def put(self, key: Any, descriptor: int) -> None:
        """Called with the lock held."""
        self.used[key] = self.budget.now()
        self.open_rows.setdefault(key, []).append(descriptor)
        self.budget.count += 1

    def unpin(self, keys: Sequence[Any]) -> None:
        """Undo one pin of each."""
        if keys:
            with self.budget.lock:
                self.pins.subtract(keys)
                for key in keys:
                    if not self.pins[key]:
                        del self.pins[key]

    def close(self, key: Any) -> None:
        """Take the files of a key out of the table; they are closed when nobody can be reading them."""
        with self.budget.lock:
            taken = self.open_rows.pop(key, None)
            if taken:
                self.forget(key)
                self.budget.retire(taken)

    def forget(self, key: Any) -> None:
        """Whatever else knows the descriptors of a key must not give them to reads that begin from now on."""


class Budget:
    """What the tables of a process share: about `capacity` descriptors, the least recently used go first.

    Those of reads under way come on top, up to twice the capacity; from there on an open waits for such reads to end.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self.lock = threading.Condition(threading.RLock())
        self._clock = itertools.count(1)
        self._active: set[int] = set()
        self._retired: deque[tuple[int, int]] = deque()
        self._tables: weakref.WeakSet[OpenTable] = weakref.WeakSet()

    def add(self, table: OpenTable) -> None:
        with self.lock:
            self._tables.add(table)
        # Not at exit: a thread may still be reading then, and the system closes everything.
        weakref.finalize(table, self._drop, table.open_rows).atexit = False

    def now(self) -> int:
        return next(self._clock)

    def begin(self) -> int:
        """The clock of a read that is about to use descriptors; every begin needs its `end`."""
        with self.lock:
            clock = next(self._clock)
            self._active.add(clock)
        return clock

    def end(self, clock: int) -> None:
        with self.lock:
            self._active.discard(clock)
            if self.count - len(self._retired) > self.capacity:  # many opened files at the same time
                self._retire_oldest(self.capacity)
            if self._retired:
                self._close_retired()

    def open(self, opener: Callable[[], int]) -> int:
        """What `opener` returns, after making room for it. Not to be called between begin and end.

        Raises: what it raises, ReadError for a limit of the system only if that is met with all idle files closed.
        """
        self._make_room(self.capacity - 1, self.capacity - max(1, self.capacity // 8))
        try:
            return opener()
        except ReadError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self._make_room(0, 0)
        return opener()

    def retire(self, descriptors: Sequence[int]) -> None:
        """Close them when every read that is under way has ended. Called with the lock held."""
        clock = next(self._clock)
        self._retired.extend((clock, descriptor) for descriptor in descriptors)
        self._close_retired()

    def _make_room(self, most: int, target: int) -> None:
        """With more than `most` files in the tables, retire the least recently used down to `target`."""
        with self.lock:
            if self.count - len(self._retired) > most:
                self._retire_oldest(target)
            self._close_retired()
            while self.count >= 2 * self.capacity and self._retired:
                self.lock.wait()

    def _retire_oldest(self, target: int) -> None:
        """Retire files that are not pinned until no more than `target` are in the tables."""
        idle = [
            (int(table.used[key]), k, key, table)
            for k, table in enumerate(self._tables)
            for key in table.open_rows
            if key not in table.pins
        ]
        kept = self.count - len(self._retired)
        for _, _, key, table in sorted(idle, key=lambda entry: entry[:2]):
            if kept <= target:
                break
            kept -= len(table.open_rows[key])
            table.close(key)

    def _close_retired(self) -> None:
        oldest = min(self._active, default=None)
        while self._retired and (oldest is None or self._retired[0][0] < oldest):
            os.close(self._retired.popleft()[1])
            self.count -= 1
            self.lock.notify_all()

    def _drop(self, open_rows: dict[Any, list[int]]) -> None:
        """A table is gone, and with it every read that could use its files."""
        with self.lock:
            for descriptor in itertools.chain.from_iterable(open_rows.values()):
                os.close(descriptor)
                self.count -= 1

    def forget_threads(self) -> None:
        """In a forked child: other threads, their reads and pins do not exist here."""
        self.lock = threading.Condition(threading.RLock())
        self._active.clear()
        for table in self._tables:
            table.pins.clear()


_budget: Budget | None = None
_lock = threading.Lock()


def shared_budget() -> Budget:
    """The budget of this process. Raises the soft limit on open files first, as far as the hard one allows."""
    global _budget
    with _lock:
        if _budget is None:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            wanted = _SOFT_LIMIT if hard == resource.RLIM_INFINITY else min(hard, _SOFT_LIMIT)
            if soft != resource.RLIM_INFINITY and soft < wanted:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                soft = wanted
            limit = _SOFT_LIMIT if soft == resource.RLIM_INFINITY else soft
            # Up to twice as many are open while they are read; the rest is left to everyone else.
            _budget = Budget(max(16, min(MAX_OPEN, limit // 4)))
        return _budget


def _before_fork() -> None:
    """No other thread is in the middle of a change then, and none of the child's hooks that collects garbage waits."""
    _lock.acquire()
    if _budget is not None:
        _budget.lock.acquire()


def _after_fork() -> None:
    if _budget is not None:
        _budget.lock.release()
    _lock.release()


def _after_fork_in_child() -> None:
    _after_fork()
    if _budget is not None:
        _budget.forget_threads()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
