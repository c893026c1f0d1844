"""The LRU of open files: what leaves first, what stays, and when a file is closed."""

import os
import signal
import threading

from conceptloader.base.forks import renew_in_children
from conceptloader.storage.handles import Handles, OpenTable
from tests.soak.builds import child


def null() -> int:
    return os.open(os.devnull, os.O_RDONLY)


def is_open(descriptor: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def fill(table: OpenTable, keys: range) -> dict[int, int]:
    """A file under each key, which is read. Returns: descriptors."""
    found = {}
    for key in keys:
        found[key] = table.handles.open(null)
        with table.handles.lock:
            table.put(key, found[key])
    table.handles.shrink()
    return found


def test_a_file_is_closed_when_the_reads_that_began_before_it_left_have_ended() -> None:
    handles = Handles(4)
    table = OpenTable({}, handles)
    files = fill(table, range(2))
    first, second = handles.begin(), handles.begin()
    table.close(0)
    third = handles.begin()
    table.close(1)
    assert (handles.count, len(table.descriptors)) == (2, 0)
    handles.end(second)
    assert is_open(files[0])
    handles.end(first)
    assert [is_open(files[key]) for key in (0, 1)] == [False, True]
    handles.end(third)
    assert not is_open(files[1])
    assert handles.count == 0


def test_an_opening_waits_for_reads_that_keep_twice_the_capacity_open() -> None:
    handles = Handles(2)
    table = OpenTable({}, handles)
    clock = handles.begin()
    fill(table, range(4))
    assert handles.count == 4
    waits, plain, done = threading.Event(), handles.lock.wait, threading.Event()

    def wait(timeout: float | None = None) -> bool:
        waits.set()
        return plain(timeout)

    handles.lock.wait = wait  # type: ignore[method-assign]

    def late() -> None:
        fill(table, range(4, 5))
        done.set()

    thread = threading.Thread(target=late, daemon=True)
    thread.start()
    assert waits.wait(60)
    assert not done.is_set()
    handles.end(clock)
    thread.join(60)
    assert done.is_set()
    assert handles.count <= 2


def test_a_forked_child_waits_for_no_read_of_its_parent() -> None:
    """Nor does it keep open what such a read used."""
    handles = Handles(2)
    renew_in_children(handles)
    table = OpenTable({}, handles)
    clock = handles.begin()
    files = fill(table, range(4))
    for key in range(4):
        table.close(key)
    assert handles.count == 4

    def in_child() -> None:
        signal.alarm(20)
        assert handles.count == 0
        assert not any(map(is_open, files.values()))
        fill(table, range(3))

    assert child(in_child)
    assert all(map(is_open, files.values()))
    handles.end(clock)
