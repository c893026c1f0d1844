"""Ranks of tests end with the test, also when it is interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
RANK = """
import os, pathlib, sys, time
sys.path.insert(0, {root!r})
from tests.dying import die_with_parent
die_with_parent()
pathlib.Path({folder!r}, "pid" + os.environ["RANK"]).write_text(str(os.getpid()))
time.sleep(600)
"""
TEST = """
import subprocess, sys
from tests.dying import die_with_parent
subprocess.Popen(sys.argv[1:], preexec_fn=die_with_parent, start_new_session=True).wait()
"""


@pytest.mark.slow
def test_ranks_do_not_outlive_a_test(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK.format(root=str(ROOT), folder=str(tmp_path)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [sys.executable, "-c", TEST, *launcher, str(tmp_path / "rank.py")]
    test = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    while not all(file.exists() and file.read_text() for file in files):
        assert test.poll() is None
        time.sleep(0.1)
    ranks = [psutil.Process(int(file.read_text())) for file in files]
    test.send_signal(signal.SIGINT)
    test.wait()
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert not alive
