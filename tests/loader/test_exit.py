"""No reading thread outlives the interpreter: coming back to it from a read would end the process with an abort."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, threading, time
atexit.register(lambda: print([t.name for t in threading.enumerate() if t is not threading.main_thread()]))
from conceptloader.batch.prefetch import Prefetcher  # its own exit handler runs before the one above
ahead = Prefetcher(lambda task: time.sleep(0.2), iter(range(100)), threads=4, depth=8)
next(ahead)
{end}
"""


@pytest.mark.parametrize("end", ["", "ahead.close()", "ahead.close(); del ahead", "raise SystemExit"])
def test_threads_have_ended_when_the_interpreter_goes(end: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(end=end)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
