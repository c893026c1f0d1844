"""Shared by all tests: where the checkout is, and how hypothesis runs."""

import fcntl
import gc
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from conceptloader.kernels.build import build
from conceptloader.kernels.library import VARIABLE, load_library

# Several processes share the cores: threads of each for every core would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell starts in its background ignores Ctrl-C, and so would all processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: a busy machine is not a failure.
settings.register_profile("conceptloader", deadline=None)
settings.load_profile("conceptloader")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Thousands of tests, and the frameworks that they import, live until the end: no garbage is looked for there."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def bounds_checks(checkout):
    """An environment in which kernels check every index. They are compiled once for all workers, and kept for later
    runs: they are of their sources, or compiled again."""
    folder = checkout / "build" / "kernels-with-bounds-checks"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build(folder, [load_library().level], bounds=True)
    return {**os.environ, VARIABLE: str(folder)}


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk():
    """Syncing is most of the time of small builds. That it happens, and in which order, test_durability.py shows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(autouse=True)
def _nothing_of_tests_before():
    """Commands that ran in this process have set what is logged, and pages of the documentation what is called."""
    logger = logging.getLogger("conceptloader")
    logger.setLevel(logging.NOTSET)
    logger.handlers.clear()
    if "conceptloader.loader.metrics" in sys.modules:
        sys.modules["conceptloader.loader.metrics"].callbacks.clear()


@pytest.fixture(scope="session")
def checkout():
    """Root of the source tree."""
    return Path(__file__).resolve().parents[1]


Tally = Callable[[str, Mapping[str, int]], None]


@pytest.fixture
def tally(request):
    """Takes a title and numbers, which are summed up over all tests and shown at the end (with xdist too)."""
    return lambda title, numbers: request.node.user_properties.append(("tally", [title, dict(numbers)]))


def pytest_unconfigure():
    """What a process tells at its end, of faults that tests made, is of no use here."""
    if reads := sys.modules.get("conceptloader.storage.reads"):
        reads.faults.clear()


def pytest_terminal_summary(terminalreporter):
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count}: {reason.removeprefix('Skipped: ')}")
    sums = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "tally":
                sums.setdefault(value[0], Counter()).update(value[1])
    if sums:
        terminalreporter.section("how much was done")
    for title in sorted(sums):
        numbers = ", ".join(f"{name}: {count}" for name, count in sums[title].items())
        terminalreporter.write_line(f"{title}: {numbers}")
