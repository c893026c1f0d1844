"""Prefetching in threads; results come in order."""

import errno
import itertools
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from conceptloader.base.terminal import masked
from conceptloader.errors import ReadError
from conceptloader.storage.threads import Task, Threads

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_LATE_S = 0.002  # of waiting: from there on it counts
_PROMPT = 16  # results that were there in time, for each that is read ahead less from then on


class Prefetcher(Iterator[tuple[T, R]]):
    """Iterator over (task, read(task)), in the order of `tasks`, with `depth` of them prefetched.

    One slow read delays all that follow it. So while the consumer waits for one, and threads are idle, more is
    prefetched, up to `most`; and less again when it does not wait.

    With depth 0 nothing is prefetched: a thread reads when it is asked to, so that the consumer can watch it, and be
    interrupted. What `read` or `tasks` raises is raised here, in its turn. Threads end with `close`, when the iterator
    is no longer referenced, and with the process, which waits for none longer than two seconds.

    where: thread identifier -> what it is reading, for the warning after warn_after_s of waiting, and for the ReadError
    after timeout_s. name: of the reader, for messages.
    """

    def __init__(
        self,
        read: Callable[[T], R],
        tasks: Iterator[T],
        *,
        threads: int,
        depth: int,
        most: int = 0,
        warn_after_s: float = 30.0,
        timeout_s: float = 300.0,
        where: Callable[[int], str] = str,
        name: str = "loader",
    ) -> None:
        self._read, self._tasks, self._where, self._name = read, iter(tasks), where, name
        self._warn_after_s, self._timeout_s = warn_after_s, timeout_s
        self._process = os.getpid()
        self._depth, self._most, self._aim, self._prompt = depth, most, depth, 0
        self._ahead: deque[tuple[T, Task[R]]] = deque()
        self._error: Exception | None = None  # of `tasks`, which have ended with it
        self.waited_s = 0.0  # by the consumer, for the last result
        self._threads = Threads(min(threads, max(depth, most)) if depth else 1, name)
        self.close = weakref.finalize(self, self._threads.stop)
        for _ in range(depth):
            self._send()

    def __next__(self) -> tuple[T, R]:
        if not self._ahead:  # depth 0, or the end
            self._send()
        if not self._ahead:
            self.close()
            raise self._error or StopIteration
        if not self.close.alive or self._process != os.getpid():
            raise RuntimeError(f"{self._name}: the iterator was closed, or belongs to the parent of this process")
        task, reading = self._ahead[0]
        start = time.monotonic()
        if not reading.wait(0):  # not locked(): without a GIL only who has had the lock sees what the thread wrote
            self._wait(reading)
        elif self._aim > self._depth:
            self._prompt += 1
            self._aim -= self._prompt % _PROMPT == 0
        self.waited_s = time.monotonic() - start
        if reading.error is not None:
            self.close()
            raise reading.error
        self._ahead.popleft()
        if self._depth and len(self._ahead) < self._aim:
            self._send()
        return task, reading.value

    @property
    def ready(self) -> int:
        """Results that wait for the consumer."""
        return sum(not reading.running.locked() for _, reading in self._ahead)

    def renew(self, stale: Callable[[T], bool]) -> None:
        """Read those tasks again of which what was read ahead does not hold any more."""
        for k, (task, _) in enumerate(self._ahead):
            if stale(task):
                self._ahead[k] = task, self._threads.submit(self._read, task)

    def _wait(self, reading: Task[R]) -> None:
        """Until it has ended. Raises: ReadError after timeout_s."""
        start, waited, tell = time.monotonic(), 0.0, self._warn_after_s
        grows = 0 < self._depth < self._most
        while not reading.wait(max(0.0, min(tell, self._timeout_s, waited + _LATE_S if grows else tell) - waited)):
            waited = time.monotonic() - start
            if grows and self._threads.idle:
                for _ in range(min(self._threads.size, self._most - len(self._ahead))):
                    self._send()
                self._aim = max(self._aim, len(self._ahead))
                grows = len(self._ahead) < self._most
            if waited >= min(tell, self._timeout_s):
                self._tell(waited, reading.thread)
                tell += self._warn_after_s

    def _send(self) -> None:
        """Have the next task read, if there is one."""
        try:
            for task in itertools.islice(self._tasks, 1):
                self._ahead.append((task, self._threads.submit(self._read, task)))
        except Exception as error:
            self._error = error

    def _tell(self, waited: float, thread: int) -> None:
        """What has been waited for. Raises: ReadError after timeout_s."""
        message = f"has waited {waited:.0f} s for {self._where(thread)}"
        if waited >= self._timeout_s:
            self.close()
            fix = f"the limit is {self._timeout_s:.0f} s (loader.timeout_s): check the file system"
            raise ReadError(self._name, message, fix=fix, errno=errno.ETIMEDOUT)
        logger.warning("%s: %s", self._name, masked(message))
