"""Reading ahead: order, bounds, errors, waiting, and that nothing is left behind."""

import gc
import itertools
import logging
import signal
import threading
import time

import pytest

from conceptloader.errors import ReadError
from conceptloader.loader.batch.prefetch import Prefetcher
from tests.raises import raises


def running():
    return sum(thread.name.startswith("ahead") for thread in threading.enumerate())


def reader(read, tasks, depth=0, threads=2, **options):
    return Prefetcher(read, iter(tasks), threads=threads, depth=depth, **{"name": "ahead", **options})


def wait_for(condition):
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(("threads", "depth"), [(1, 0), (1, 1), (2, 1), (3, 2), (3, 7), (2, 100)])
def test_results_come_in_order_however_long_each_takes(threads, depth):
    def read(n):
        time.sleep(0.002 * (n * 7 % 3))
        return n * n

    assert list(reader(read, range(40), depth, threads)) == [(n, n * n) for n in range(40)]
    assert wait_for(lambda: running() == 0)


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
def test_no_more_is_read_ahead_than_asked_for(depth):
    started = []
    ahead = reader(lambda n: started.append(n), range(100), depth)
    for taken in range(1, 6):
        next(ahead)
        assert wait_for(lambda taken=taken: len(started) == taken + depth)
        time.sleep(0.02)
        assert len(started) == taken + depth
    ahead.close()


def test_more_is_read_ahead_while_one_read_is_late_and_threads_are_idle():
    """Up to `most`; in order; and after a while without waiting no more than `depth`."""
    started, release = [], threading.Event()

    def read(n):
        started.append(n)
        if n == 2:
            release.wait()
        return n

    ahead = reader(read, itertools.count(), 4, 3, most=50)
    assert [next(ahead)[0] for _ in range(2)] == [0, 1]
    watching = threading.Thread(target=lambda: (wait_for(lambda: len(started) == 52), release.set()))
    watching.start()
    assert next(ahead)[0] == 2
    watching.join()
    for wanted in range(3, 1000):
        assert wait_for(lambda: ahead.ready)  # nothing is late any more
        assert next(ahead)[0] == wanted
    assert wait_for(lambda: ahead.ready == 4)
    assert len(started) == 1000 + 4
    ahead.close()


@pytest.mark.parametrize(("depth", "most"), [(0, 0), (1, 0), (3, 0), (8, 0), (2, 8)])
def test_an_error_of_the_tasks_comes_behind_what_they_gave_before(depth, most):
    """However far ahead it is met, and however long the reads before it take."""

    def tasks():
        yield from range(5)
        raise OSError("broken")

    def read(n):
        time.sleep(0.01)
        return n

    ahead = reader(read, tasks(), depth, most=most)
    assert [next(ahead)[0] for _ in range(5)] == list(range(5))
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            next(ahead)


@pytest.mark.parametrize("depth", [0, 6])
def test_an_error_comes_in_its_turn_and_ends_the_threads(depth):
    def read(n):
        if n == 3:
            raise OSError("broken")
        return n

    ahead = reader(read, range(10), depth)
    assert [next(ahead)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="broken"):
        next(ahead)
    assert wait_for(lambda: running() == 0)
    with pytest.raises(RuntimeError, match="closed"):
        next(ahead)


@pytest.mark.parametrize("depth", [0, 3])
def test_a_closed_iterator_says_so_unless_it_was_at_its_end(depth):
    ahead = reader(lambda n: n, range(4), depth)
    next(ahead)
    ahead.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            next(ahead)
    ahead = reader(lambda n: n, range(4), depth)
    assert [next(ahead)[0] for _ in range(4)] == [0, 1, 2, 3]
    ahead.close()
    assert list(ahead) == []


@pytest.mark.parametrize("depth", [0, 3])
def test_an_interrupted_wait_loses_nothing(depth):
    """An interrupt that the training catches: the batch that it was waiting for comes next."""
    blocked, release = threading.Event(), threading.Event()

    def read(n):
        if n == 2:
            blocked.set()
            release.wait()
        return n

    def interrupt():
        blocked.wait()
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    ahead = reader(read, range(5), depth, 1)
    assert [next(ahead)[0] for _ in range(2)] == [0, 1]
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        next(ahead)
    thread.join()
    release.set()
    assert [result for _, result in ahead] == [2, 3, 4]


@pytest.mark.parametrize(("depth", "threads"), [(6, 3), (0, 1)])
def test_an_abandoned_iterator_ends_its_threads(depth, threads):
    ahead = reader(lambda n: n, range(10**9), depth, 3)
    next(ahead)
    assert running() == threads
    del ahead
    gc.collect()
    assert wait_for(lambda: running() == 0)


@pytest.mark.parametrize("depth", [0, 4])
def test_a_blocked_read_is_logged_and_then_an_error(caplog, depth):
    release = threading.Event()
    threads = {}

    def where(ident):
        return f"sample 7 of {threads[ident]}"

    def read(n):
        threads[threading.get_ident()] = f"file {n}"
        if n == 1:
            release.wait()
        return n

    ahead = reader(read, range(9), depth, warn_after_s=0.05, timeout_s=0.3, where=where, name="ahead, dp_rank 3")
    next(ahead)
    with caplog.at_level(logging.WARNING), raises(ReadError, "dp_rank 3", "sample 7 of file 1"):
        next(ahead)
    release.set()
    assert 2 <= len(caplog.records) <= 6
    assert "sample 7 of file 1" in caplog.records[0].message
    assert wait_for(lambda: running() == 0)
