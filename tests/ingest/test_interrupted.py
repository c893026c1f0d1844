"""Builds that are killed: what is finished stays, and the end result is byte-identical."""

import json
import multiprocessing
import operator
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from conceptloader.base.workers import run_tasks
from conceptloader.errors import ConceptloaderError
from tests.corpora.records import content
from tests.raises import raises

SHARDS = 12


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """About 100 KB, 12 shards."""
    rng = random.Random(3)
    path = tmp_path_factory.mktemp("kill") / "in.jsonl"
    with open(path, "w") as file:
        for i in range(1200):
            cut = rng.randint(1, 50)
            spans = [{"start": 0, "end": cut, "concepts": [rng.randint(0, 9)]}]
            file.write(json.dumps({"id": str(i), "text": "x" * 60, "spans": spans}) + "\n")
    return path


def start(source, out, workers):
    size = -(-source.stat().st_size // SHARDS)
    command = [sys.executable, "-m", "conceptloader", "build", source, "--out", out, "--tokenizer", "bytes"]
    more = ["--workers", str(workers), "--shard-input-bytes", str(size)]
    return subprocess.Popen([*map(str, command), *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finished(out):
    return {path.name for path in out.glob("*.shard.json")}


def wait_for_shards(out, count, process):
    while process.poll() is None and len(finished(out)) < count:
        time.sleep(0.001)


@pytest.fixture(scope="module")
def wanted(source):
    """What a build gives that nobody kills."""
    out = source.parent / "plain"
    process = start(source, out, 1)
    assert process.wait(100) == 0, process.communicate()
    assert len(finished(out)) == SHARDS
    return content(out)


def test_ctrl_c(source, wanted, tmp_path):
    """It ends the build at once, and says so; the same command goes on. Kills are those of tests/soak."""
    out = tmp_path / "out"
    process = start(source, out, 2)
    wait_for_shards(out, 1, process)
    children = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    printed = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert not psutil.wait_procs(children, timeout=60)[1]
    process = start(source, out, 1)
    assert process.wait(100) == 0, process.communicate()
    assert content(out) == wanted


def test_a_worker_that_is_killed_between_two_tasks_is_told():
    def kill(*_):
        for child in multiprocessing.active_children():
            child.kill()
            child.join()

    with raises(ConceptloaderError, found="exit code -9", fix="run the same command again"):
        run_tasks(operator.is_, range(8), 2, print, kill)
