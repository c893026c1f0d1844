"""Reading ahead in threads, handed out in order."""

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


class Prefetcher(Iterator[tuple[T, R]]):
    """Iterator over (task, read(task)), in the order of `tasks`, at most `depth` of them ahead of the consumer.

    With depth 0 nothing is read ahead: a thread reads when it is asked to, so that the consumer can watch it, and be
    interrupted. What `read` raises is raised here, in its turn. Threads end with `close`, when the iterator is no
    longer referenced, and with the process; none is waited for longer than a second.

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
        warn_after_s: float = 30.0,
        timeout_s: float = 300.0,
        where: Callable[[int], str] = str,
        name: str = "loader",
    ) -> None:
        self._read, self._tasks, self._where, self._name = read, iter(tasks), where, name
        self._warn_after_s, self._timeout_s = warn_after_s, timeout_s
        self._process = os.getpid()
        self._depth = depth
        self._ahead: deque[tuple[T, Task[R]]] = deque()
        self.waited_s = 0.0  # by the consumer, for the last result
        self._threads = Threads(min(threads, depth) or 1, name)
        self.close = weakref.finalize(self, self._threads.stop)
        for _ in range(depth):
            self._send()

    def __next__(self) -> tuple[T, R]:
        if not self._ahead:  # depth 0, or the end
            self._send()
        if not self._ahead:
            self.close()
            raise StopIteration
        if not self.close.alive or self._process != os.getpid():
            raise RuntimeError(f"{self._name}: the iterator was closed, or belongs to the parent of this process")
        task, reading = self._ahead[0]
        start, waited = time.monotonic(), 0.0
        while not reading.wait(max(0.0, min(self._warn_after_s, self._timeout_s - waited))):
            waited = time.monotonic() - start
            self._tell(waited, reading.thread)
        self.waited_s = time.monotonic() - start
        if reading.error is not None:
            self.close()
            raise reading.error
        self._ahead.popleft()
        if self._depth:
            self._send()
        return task, reading.value

    @property
    def ready(self) -> int:
        """Results that wait for the consumer."""
        return sum(not reading.running.locked() for _, reading in self._ahead)

    def _send(self) -> None:
        """Have the next task read, if there is one."""
        for task in itertools.islice(self._tasks, 1):
            self._ahead.append((task, self._threads.submit(self._read, task)))

    def _tell(self, waited: float, thread: int) -> None:
        """What has been waited for. Raises: ReadError after timeout_s."""
        message = f"{self._name}: has waited {waited:.0f} s for {self._where(thread)}"
        if waited >= self._timeout_s:
            self.close()
            raise ReadError(
                errno.ETIMEDOUT,
                f"{message}; the limit is {self._timeout_s:.0f} s (loader.timeout_s): check the file system",
            )
        logger.warning("%s", masked(message))
