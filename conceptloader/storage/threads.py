"""Threads that wait for requests. Daemons, so that a request which hangs does not keep the process from ending."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_JOIN_S = 1.0


class Pool:
    """Up to `size` threads, started when they are needed."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        _pools.add(self)

    def submit(self, function: Callable[..., R], *arguments: Any) -> "Future[R]":
        future: Future[R] = Future()
        self._tasks.put((future, function, arguments))
        if not self._idle.acquire(blocking=False):
            with self._lock:
                if len(self._threads) < self._size:
                    thread = threading.Thread(target=self._work, name=f"{self._name} {len(self._threads)}", daemon=True)
                    self._threads.append(thread)
                    thread.start()
        return future

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """function(item) of all items at once, results in order. Not to be called from a thread of this pool."""
        futures = [self.submit(function, item) for item in items]
        return (future.result() for future in futures)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function, arguments = task
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)
            del task, future, function, arguments
            self._idle.release()

    def stop(self, deadline: float) -> None:
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


_pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()
_shared: dict[str, Pool] = {}
_shared_lock = threading.Lock()


def shared_pool(name: str, size: int) -> Pool:
    """The pool of this name in this process."""
    with _shared_lock:
        if name not in _shared:
            _shared[name] = Pool(size, name)
        return _shared[name]


@atexit.register
def _stop_all() -> None:
    deadline = time.monotonic() + _JOIN_S
    for pool in list(_pools):
        pool.stop(deadline)


def _after_fork() -> None:
    """A forked child has none of its parent's threads."""
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()
    for pool in list(_pools):
        _pools.discard(pool)


os.register_at_fork(after_in_child=_after_fork)
