"""The LRU of open files: what leaves first, what stays, and when a file is closed."""

import os
import signal

from conceptloader.base.forks import renew_in_children
from conceptloader.storage.handles import Handles, OpenTable
from tests.soak.builds import child


def null():
    return os.open(os.devnull, os.O_RDONLY)


def is_open(descriptor):
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def fill(table, keys):
    """A file under each key, which is read. Returns: descriptors."""
    found = {}
    for key in keys:
        found[key] = table.handles.open(null)
        with table.handles.lock:
            table.put(key, found[key])
    table.handles.shrink()
    return found


def test_a_forked_child_waits_for_no_read_of_its_parent():
    """Nor does it keep open what such a read used."""
    handles = Handles(2)
    renew_in_children(handles)
    table = OpenTable({}, handles)
    clock = handles.begin()
    files = fill(table, range(4))
    for key in range(4):
        table.close(key)
    assert handles.count == 4

    def in_child():
        signal.alarm(20)
        assert handles.count == 0
        assert not any(map(is_open, files.values()))
        fill(table, range(3))

    assert child(in_child)
    assert all(map(is_open, files.values()))
    handles.end(clock)
