"""Descriptors for the kernels: a table of open files that a call may use without asking anyone.

Closing a file while another thread is between looking its number up and reading would, once the number is given out
again, read another file. So a descriptor that leaves the table is closed only when every call that was under way then
has ended; calls are numbered by a clock, and so is what leaves.
"""

import errno
import itertools
import os
import resource
import threading
import weakref
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from conceptloader.batch.kernels.native import STREAM
from conceptloader.batch.kernels.tables import Tables
from conceptloader.errors import ReadError

MAX_OPEN = 16_384
_SOFT_LIMIT = 65_536


class OpenFiles:
    """The open files of one reader.

    files: i32 [shards, columns], -1 for closed; used: i64 [shards], clock of the last use.
    """

    def __init__(self, tables: Tables, budget: "Budget | None" = None) -> None:
        self.tables = tables
        self.budget = budget or shared_budget()
        rows = len(tables.shards)
        self.files: npt.NDArray[np.int32] = np.full((rows, len(tables.kinds)), -1, np.int32)
        self.used: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.open_rows: dict[int, int] = {}
        self.pins: Counter[int] = Counter()
        self.budget.add(self)

    def open(self, row: int) -> None:
        """Open the files of a shard that are read, and pin them until `unpin`.

        Raises: FormatError for a file of another size than the manifest says, or that was replaced since it was first
        opened; ReadError.
        """
        with self.budget.lock:
            self.pins[row] += 1
        opened: list[tuple[int, int]] = []
        try:
            # The stream comes last: where it is open, everything is.
            for column, kind in reversed(self.tables.needed(row)):
                if self.files[row, column] < 0:
                    opened.append((column, self._open(row, kind)))
        except BaseException:
            for _, descriptor in opened:
                os.close(descriptor)
            self.unpin([row])
            raise
        with self.budget.lock:
            for column, descriptor in opened:
                if self.files[row, column] >= 0:  # another thread was faster
                    os.close(descriptor)
                    continue
                self.used[row] = self.budget.now()
                self.files[row, column] = descriptor
                self.open_rows[row] = self.open_rows.get(row, 0) + 1
                self.budget.count += 1

    def unpin(self, rows: Sequence[int]) -> None:
        """Undo one `open` of each row."""
        if not rows:
            return
        with self.budget.lock:
            self.pins.subtract(rows)
            for row in rows:
                if not self.pins[row]:
                    del self.pins[row]

    def close(self, row: int) -> None:
        """Take the files of a shard out of the table; they are closed when nobody can be reading them."""
        with self.budget.lock:
            self.budget.retire(self, row)

    def path(self, row: int, column: int) -> str:
        """The file in a column of a row, for messages; the stream if there is none, since the row and the column of a
        thread that reads on may not belong together."""
        dataset, shard = self.tables.owner(row)
        kind = self.tables.kinds[column]
        return dataset.files.path(kind if kind in dataset.manifest.shards.files else self.tables.kinds[STREAM], shard)

    def _open(self, row: int, kind: str) -> int:
        dataset, shard = self.tables.owner(row)
        self.budget.make_room()
        try:
            descriptor = dataset.files.open(kind, shard)
        except ReadError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self.budget.make_room(all_idle=True)
            descriptor = dataset.files.open(kind, shard)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: windows are read at random
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


class Budget:
    """The descriptors that the readers of a process share: about `capacity`, least recently used shards go first.

    Those of calls under way come on top, up to twice the capacity; from there on an open waits for such calls to end.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self.lock = threading.Condition(threading.RLock())
        self._clock = itertools.count(1)
        self._active: set[int] = set()
        self._retired: deque[tuple[int, int]] = deque()
        self._tables: weakref.WeakSet[OpenFiles] = weakref.WeakSet()

    def add(self, table: OpenFiles) -> None:
        with self.lock:
            self._tables.add(table)
        # Not at exit: a thread may still be reading then, and the system closes everything.
        weakref.finalize(table, self._drop, table.files, table.open_rows).atexit = False

    def now(self) -> int:
        return next(self._clock)

    def begin(self) -> int:
        """The clock of a call that is about to use descriptors; every begin needs its `end`."""
        with self.lock:
            clock = next(self._clock)
            self._active.add(clock)
        return clock

    def end(self, clock: int) -> None:
        with self.lock:
            self._active.discard(clock)
            if self._retired:
                self._close_retired()

    def retire(self, table: OpenFiles, row: int) -> None:
        """Take a shard's files out of its table. Called with the lock held."""
        if table.open_rows.pop(row, 0):
            found = table.files[row]
            taken = [int(descriptor) for descriptor in found if descriptor >= 0]
            found[STREAM + 1 :] = -1
            found[STREAM] = -1
            clock = next(self._clock)
            self._retired.extend((clock, descriptor) for descriptor in taken)
            self._close_retired()

    def make_room(self, all_idle: bool = False) -> None:
        """Retire the least recently used shards, an eighth of the capacity at once, if one more file is too many.

        To be called outside of begin and end.
        """
        with self.lock:
            if self.count - len(self._retired) >= self.capacity or all_idle:
                self._retire_oldest(0 if all_idle else self.capacity - max(1, self.capacity // 8))
            self._close_retired()
            while self.count >= 2 * self.capacity and self._retired:
                self.lock.wait()

    def _retire_oldest(self, target: int) -> None:
        """Retire shards that are not pinned until no more than `target` files are in the tables."""
        idle = sorted(
            (int(table.used[row]), k, row, table)
            for k, table in enumerate(self._tables)
            for row in table.open_rows
            if row not in table.pins
        )
        kept = self.count - len(self._retired)
        for _, _, row, table in idle:
            if kept <= target:
                break
            kept -= table.open_rows[row]
            self.retire(table, row)

    def _close_retired(self) -> None:
        oldest = min(self._active, default=None)
        while self._retired and (oldest is None or self._retired[0][0] < oldest):
            os.close(self._retired.popleft()[1])
            self.count -= 1
            self.lock.notify_all()

    def _drop(self, files: npt.NDArray[np.int32], open_rows: dict[int, int]) -> None:
        """A reader is gone, and with it every call that could use its files."""
        with self.lock:
            for descriptor in files[list(open_rows)].reshape(-1).tolist():
                if descriptor >= 0:
                    os.close(descriptor)
                    self.count -= 1

    def forget_threads(self) -> None:
        """In a forked child: other threads, their calls and pins do not exist here."""
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
            # Half of them are left to format/, which may have taken its share, and a part of the rest to everyone else.
            _budget = Budget(max(16, min(MAX_OPEN, limit // 4)))
        return _budget


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    if _budget is not None:
        _budget.forget_threads()


os.register_at_fork(after_in_child=_after_fork)
