"""Threads that wait, for requests and for reads.

Daemons, so that one which hangs does not keep the process from ending; the end of the process waits for none of them
longer than two seconds.
"""

import atexit
import ctypes
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_JOIN_S = 1.0


class Task(Generic[R]):
    """A call that a thread makes or has made.

    thread: its identifier, 0 before; error: what it raised; value: what it returned, once it has ended without.

    One lock, where a concurrent.futures.Future has a condition, which costs a batch of the loader some 15 us more.
    """

    def __init__(self, function: Callable[..., R], arguments: tuple[Any, ...]) -> None:
        self.call: tuple[Callable[..., R], tuple[Any, ...]] | None = (function, arguments)
        self.running = threading.Lock()
        self.running.acquire()
        self.thread = 0
        self.error: BaseException | None = None
        self.value: R

    def wait(self, timeout: float = -1) -> bool:
        """Whether it has ended, within so many seconds; -1: however long that takes."""
        ended = self.running.acquire(True, timeout)
        if ended:
            self.running.release()
        return ended

    def result(self) -> R:
        """What it returned, once it has ended. Raises what it raised."""
        self.wait()
        if self.error is not None:
            raise self.error
        return self.value


class Threads:
    """Up to `size` threads, started when they are needed; tasks begin in the order in which they come."""

    def __init__(self, size: int, name: str) -> None:
        self.size, self._name = size, name
        self._tasks: SimpleQueue[Task[Any] | None] = SimpleQueue()
        self._idle: deque[None] = deque()  # one for each thread that waits, or is about to
        self._lock = threading.Lock()
        self.threads: list[threading.Thread] = []
        _all.add(self)

    def submit(self, function: Callable[..., R], *arguments: Any) -> Task[R]:
        task = Task(function, arguments)
        self._tasks.put(task)
        try:
            self._idle.pop()
        except IndexError:
            with self._lock:
                if len(self.threads) < self.size:
                    thread = threading.Thread(target=self._work, name=f"{self._name} {len(self.threads)}", daemon=True)
                    self.threads.append(thread)
                    thread.start()
        return task

    @property
    def idle(self) -> bool:
        """Whether no task waits for a thread."""
        return self._tasks.empty()

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """function(item) of all items at once, results in order. Not to be called from one of these threads."""
        tasks = [self.submit(function, item) for item in items]
        return (task.result() for task in tasks)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            assert task.call is not None
            (function, arguments), task.call = task.call, None
            task.thread = threading.get_ident()
            try:
                task.value = function(*arguments)
            except BaseException as error:
                task.error = error
            self._idle.append(None)
            task.running.release()
            del task, function, arguments  # a result is its reader's alone: memory that is free may be used again

    def stop(self) -> None:
        """Let threads end after the task that they are at; those that wait are dropped."""
        try:
            while True:
                self._tasks.get_nowait()
        except Empty:
            for _ in self.threads:
                self._tasks.put(None)


_all: "weakref.WeakSet[Threads]" = weakref.WeakSet()  # those that were stopped too, while one of them runs
_shared: dict[tuple[str, int], Threads] = {}


def shared_threads(name: str, size: int) -> Threads:
    """The threads of this name in this process; a forked child has none of its parent's."""
    key = name, os.getpid()
    return _shared.get(key) or _shared.setdefault(key, Threads(size, name))


@atexit.register
def _stop_all() -> None:
    """Before the interpreter goes.

    A thread that needs it afterwards is killed, and if that happens in C++, as in torch, the process aborts. So what is
    still at work after a second gets an exception: it leaves before its next line, also where a read ends late.
    """
    groups = list(_all)
    for group in groups:
        group.stop()
    threads = [thread for group in groups for thread in group.threads]
    _join(threads)
    for thread in threads:
        if thread.is_alive() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    _join(threads)


def _join(threads: Iterable[threading.Thread]) -> None:
    deadline = time.monotonic() + _JOIN_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
