"""Reading ahead in threads, handed out in order."""

import atexit
import errno
import itertools
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from conceptloader.errors import ReadError

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_STOP = object()
_JOIN_S = 1.0


class Prefetcher(Generic[T, R]):
    """Iterator over (task, read(task)), in the order of `tasks`, at most `depth` of them ahead of the consumer.

    Task n is read by thread n mod `threads`, so results need no sorting. With depth 0 nothing is read ahead: a thread
    reads when it is asked to, so that the consumer can watch it, and be interrupted. What `read` raises is raised
    here, in its turn. Threads end with `close`, when the iterator is no longer referenced, and with the process; none
    is waited for longer than a second.

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
        self._tasks, self._where, self._name = iter(tasks), where, name
        self._warn_after_s, self._timeout_s = warn_after_s, timeout_s
        self._process = os.getpid()
        self._ahead: deque[tuple[T, _Worker]] = deque()
        self._workers = [_Worker(read, f"{name} {k}") for k in range(min(threads, depth) or 1)]
        self._next_worker = itertools.cycle(self._workers)
        self._depth = depth
        self.close = weakref.finalize(self, _stop, self._workers)
        _open.add(self)
        for _ in range(depth):
            self._send()

    def __iter__(self) -> "Prefetcher[T, R]":
        return self

    def __next__(self) -> tuple[T, R]:
        if not self._ahead:  # depth 0, or the end
            self._send()
        if not self._ahead:
            self.close()
            raise StopIteration
        if not self.close.alive or self._process != os.getpid():
            raise RuntimeError(f"{self._name}: the iterator was closed, or belongs to the parent of this process")
        task, worker = self._ahead[0]
        result, error = self._wait(worker)
        if error is not None:
            self.close()
            raise error
        self._ahead.popleft()
        if self._depth:
            self._send()
        return task, result

    def _send(self) -> None:
        """Hand the next task, if there is one, to the next worker."""
        for task in itertools.islice(self._tasks, 1):
            worker = next(self._next_worker)
            self._ahead.append((task, worker))
            worker.tasks.put(task)

    def _wait(self, worker: "_Worker") -> Any:
        start = time.monotonic()
        while True:
            waited = time.monotonic() - start
            try:
                return worker.results.get(timeout=max(0.0, min(self._warn_after_s, self._timeout_s - waited)))
            except Empty:
                waited = time.monotonic() - start
            message = f"{self._name}: has waited {waited:.0f} s for {self._where(worker.thread.ident or 0)}"
            if waited >= self._timeout_s:
                self.close()
                raise ReadError(
                    errno.ETIMEDOUT,
                    f"{message}; the limit is {self._timeout_s:.0f} s (loader.timeout_s): check the file system",
                )
            logger.warning("%s", message)


class _Worker:
    """A thread with its queue of tasks and its queue of (result, error)."""

    def __init__(self, read: Callable[[Any], Any], name: str) -> None:
        self.tasks: SimpleQueue[Any] = SimpleQueue()
        self.results: SimpleQueue[Any] = SimpleQueue()
        self.thread = Thread(target=_work, args=(read, self.tasks, self.results), name=name, daemon=True)
        _threads.add(self.thread)
        self.thread.start()


def _work(read: Callable[[Any], Any], tasks: "SimpleQueue[Any]", results: "SimpleQueue[Any]") -> None:
    """Body of a thread. It holds no reference to the iterator, so that an abandoned one can be collected."""
    while (task := tasks.get()) is not _STOP:
        result: tuple[Any, BaseException | None]
        try:
            result = read(task), None
        except BaseException as error:
            result = None, error
        results.put(result)
        del task, result  # the consumer's alone: memory that is free may be used again


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        while not worker.tasks.empty():
            worker.tasks.get()
        worker.tasks.put(_STOP)


_open: "weakref.WeakSet[Prefetcher[Any, Any]]" = weakref.WeakSet()
_threads: "weakref.WeakSet[Thread]" = weakref.WeakSet()  # those of closed iterators too, while they run


@atexit.register
def _stop_all() -> None:
    """Before the interpreter goes: a thread that comes back to it from a read ends the process with an abort."""
    for prefetcher in list(_open):
        prefetcher.close()
    deadline = time.monotonic() + _JOIN_S
    for thread in list(_threads):
        thread.join(max(0.0, deadline - time.monotonic()))
