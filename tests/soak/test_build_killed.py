"""Builds killed at any moment: never mistaken for a dataset, finished shards are kept, the bytes end up the same."""

import multiprocessing
import os
import shutil
import signal
import threading
import time

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConceptloaderError, ConfigError, FormatError
from tests.scale import scaled
from tests.soak.builds import build, child, contents, finished_shards, killing_at, write_input

CHUNKS = 4


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_input(tmp_path_factory.mktemp("input") / "corpus.jsonl")


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory):
    """What a build is when nothing happens to it, and how long it takes."""
    build(source, tmp_path_factory.mktemp("warm") / "ds")
    out = tmp_path_factory.mktemp("undisturbed") / "ds"
    start = time.monotonic()
    child(lambda: build(source, out))
    return contents(out), time.monotonic() - start


def check_is_no_dataset(out, wanted):
    """Whether it is complete after all; a directory that is not must be refused."""
    if (out / "manifest.json").exists():
        left_behind = {name for name in contents(out) if name.endswith(".tmp")}
        assert {name: data for name, data in contents(out).items() if name not in left_behind} == wanted
        assert cl.verify(out, full=True) == []
        return True
    with pytest.raises((FormatError, ConfigError)):
        cl.open_dataset(out)
    return False


def finish(source, out, wanted):
    """Run it to its end; finished shards are not touched and nothing is left behind."""
    kept = finished_shards(out)
    build(source, out)
    after = finished_shards(out)
    assert {name: after[name] for name in kept} == kept, "a finished shard was written again"
    assert contents(out) == wanted
    assert cl.verify(out, full=True) == []


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_killed_at_random_moments(tmp_path, source, undisturbed, chunk, tally):
    wanted, seconds = undisturbed
    rng = np.random.default_rng(chunk)
    kills = late = builds = 0
    while kills < scaled(8, 200) // CHUNKS:
        builds += 1
        out = tmp_path / f"ds{builds}"
        for _ in range(int(rng.integers(1, 4))):  # killed again while it goes on
            if child(lambda out=out: build(source, out), float(rng.uniform(0, 1.1 * seconds))):
                late += 1
            else:
                kills += 1
            if check_is_no_dataset(out, wanted) if out.exists() else False:
                break
        finish(source, out, wanted) if not (out / "manifest.json").exists() else None
        shutil.rmtree(out)
    tally("builds killed at random moments", {"kills": kills, "builds": builds, "too late": late})


@pytest.mark.soak
def test_killed_before_every_operation(tmp_path, source, undisturbed, tally):
    """Every sync, rename, link and unlink in turn; in the short form, every 25th."""
    wanted, _ = undisturbed
    operation, kills = 0, 0
    while True:
        out = tmp_path / f"ds{operation}"
        install = killing_at(operation)
        if child(lambda out=out, install=install: (install(), build(source, out))):
            break
        kills += 1
        if not out.exists() or not check_is_no_dataset(out, wanted):
            finish(source, out, wanted)
        shutil.rmtree(out)
        operation += scaled(25, 1)
    assert kills > 5
    tally("builds killed before each operation", {"kills": kills})


@pytest.mark.soak
def test_a_worker_is_killed(tmp_path, source, undisturbed, tally):
    """With worker processes, the death of one is an error of the build, and the next run goes on."""
    wanted, _ = undisturbed
    for number in range(scaled(1, 8)):
        out = tmp_path / f"ds{number}"
        kill_a_worker(source, out, seed=number)
        if not check_is_no_dataset(out, wanted):
            finish(source, out, wanted)
    tally("builds with a killed worker", {"kills": scaled(1, 8)})


def kill_a_worker(source, out, seed):
    rng = np.random.default_rng(seed)
    done = threading.Event()

    def killer():
        while not done.is_set():
            workers = multiprocessing.active_children()
            if len(workers) == 2 and (finished_shards(out) or rng.random() < 0.001):
                os.kill(workers[int(rng.integers(2))].pid or 0, signal.SIGKILL)
                return
            time.sleep(0.001)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        build(source, out, workers=2)
    except ConceptloaderError as error:
        assert "worker process" in str(error)  # noqa: PT017 - it may also have finished before the kill
    finally:
        done.set()
        thread.join()
