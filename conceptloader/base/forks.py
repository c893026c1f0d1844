"""What happens to locks and threads when this process forks; the one place that registers it with the system.

A child has the thread that forked and no other: what another one held stays held, and what it was about to do is never
done.
"""

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Renewed(Protocol):
    """What has locks, threads, or calls that are under way."""

    def renew(self) -> None:
        """In a forked child, before anything else: begin without what only other threads could give back or end."""


_renewed: WeakSet[Renewed] = WeakSet()
_held: "list[threading.Condition]" = []


def renew_in_children(thing: Renewed) -> None:
    """Call its `renew` in every forked child, as long as it exists."""
    _renewed.add(thing)


def hold_while_forking(lock: threading.Condition) -> None:
    """So that no other thread is in the middle of what the lock protects, and the child finds it whole."""
    _held.append(lock)


def _before() -> None:
    for lock in _held:
        lock.acquire()


def _after() -> None:
    for lock in reversed(_held):
        lock.release()


def _in_child() -> None:
    _after()
    for thing in list(_renewed):
        thing.renew()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
