"""No reading thread outlives the interpreter: coming back to it from a read would end the process with an abort."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, threading, time
atexit.register(lambda: print([t.name for t in threading.enumerate() if t is not threading.main_thread()]))
from conceptloader.loader.batch.prefetch import Prefetcher  # its own exit handler runs before the one above
ahead = Prefetcher(lambda task: time.sleep(0.2), iter(range(100)), threads=4, depth=8)
next(ahead)
{end}
"""


# A thread that is killed in code of torch, which may not be left by an exception, aborts the process.
BUSY = """
import time, torch
from conceptloader.loader.batch.prefetch import Prefetcher
def read(task):
    time.sleep(0.3 * (task % 5))
    while True:
        torch.ones(1000).clone().sum().item()
ahead = Prefetcher(read, iter(range(100)), threads=10, depth=20)
time.sleep(0.2)
"""


def test_threads_that_are_still_at_work_are_ended_before_the_interpreter_goes():
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("end", ["", "ahead.close()", "ahead.close(); del ahead", "raise SystemExit"])
def test_threads_have_ended_when_the_interpreter_goes(end):
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(end=end)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
