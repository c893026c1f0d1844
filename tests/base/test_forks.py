"""What is renewed in a forked child, and what is whole there."""

import threading

from conceptloader.base import forks
from conceptloader.storage.threads import shared_threads
from tests.soak.builds import child


def test_no_thread_is_in_the_middle_of_what_a_lock_protects():
    lock, values, stop = threading.Condition(threading.RLock()), [0, 0], threading.Event()
    forks.hold_while_forking(lock)

    def change():
        while not stop.is_set():
            with lock:
                values[0] += 1
                stop.wait(0.0001)
                values[1] += 1

    thread = threading.Thread(target=change)
    thread.start()

    def in_child():
        assert values[0] == values[1]
        with lock:
            pass

    try:
        assert all(child(in_child) for _ in range(20))
    finally:
        stop.set()
        thread.join()
        forks._held.remove(lock)


def test_shared_threads_start_again_in_a_child():
    wanted = [1, 2, 3]
    assert list(shared_threads("test", 2).map(abs, [-1, -2, -3])) == wanted

    def in_child():
        assert list(shared_threads("test", 2).map(abs, [-1, -2, -3])) == wanted

    assert child(in_child)
