"""Coverage-guided mutation: an input that reaches a line which none has reached before is kept, and mutated further.

`make fuzz SECONDS=300` tries all targets for 300 seconds in all, and puts what is new into tests/hostile/corpus.tar.xz.
The input that ended a process, or hangs in compiled code, is in the file of `last_input`.
"""

import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np

import conceptloader
from conceptloader.errors import ConceptloaderError
from tests import archives
from tests.corruption.mutations import KINDS
from tests.hostile.targets import made_inputs

CORPUS = Path(__file__).with_name("corpus.tar.xz")  # <target>/<name>: an input that reached something new
KEEP = "CONCEPTLOADER_FUZZ_SECONDS" in os.environ
SOURCE = str(Path(conceptloader.__file__).parent)
HANG_S = 60
MOST_BYTES = 64 << 20
NAMES = (
    "manifest", "shard_report", "build_file", "vocabulary", "yaml", "jsonl", "quarantine", "run_log", "order_spec",
    "megatron_index", "npy", "loader_state", "sampler_state", "megatron_state", "nanotron_state", "engine", "records",
    "store", "parquet", "compressed", "annotations", "checksums", "datatrove_index",
)  # fmt: skip
WORDS = [
    b"[" * 300, b'{"a":' * 300, b"NaN", b"-Infinity", b"1e999", b"null", b"true", b'""', b"[]", b"{}", b"-1", b"0",
    b"18446744073709551616", b"1152921504606846976", b"4294967295", b"0.5", b"\xff\xfe", b"\x00", b"\\ud800", b"\n",
    b"../../../../etc/passwd", b"/etc/passwd", b"!!python/object/apply:os.system ['true']", b"&a [*a]", b"<<: *a",
    b"dense", b"spans", b"pickle", b"os.system", b'"version": 2', b"'", b'"', b",", b":", b"- ", b"  ",
]  # fmt: skip


def mutate(data, others, rng):
    """A few edits: those of files; words put in; slices removed, repeated, taken from other inputs; digits changed."""

    def chosen(some):
        return some[int(rng.integers(len(some)))]

    for _ in range(int(rng.integers(1, 5))):
        at, size = int(rng.integers(0, len(data) + 1)), int(rng.geometric(0.1))
        kind = int(rng.integers(6 + len(KINDS) // 2))
        if kind < 2:
            data = data[:at] + chosen(WORDS) + data[at + size * kind :]
        elif kind == 2:
            data = data[:at] + data[at + size :]
        elif kind == 3:
            data = data[: at + size] + data[at:]
        elif kind == 4:
            other = chosen(others)
            begin = int(rng.integers(0, len(other) + 1))
            data = data[:at] + other[begin : begin + 4 * size] + data[at:]
        elif kind == 5 and (digits := [i for i, byte in enumerate(data[:5000]) if 48 <= byte < 58]):
            at = chosen(digits)
            data = data[:at] + str(int(rng.integers(10))).encode() + data[at + 1 :]
        else:
            data = chosen(KINDS)(data, rng)
    return data[:100_000]


class Hang(BaseException):
    """An input took too long."""


def attempt(target, data, lines=None):
    """The error of ours that an input gives, or "accepted". lines: takes what is executed of conceptloader."""

    def stop(_number, _frame):
        raise Hang(f"more than {HANG_S} s")

    def trace(frame, event, _argument):
        if event == "call":
            return trace if frame.f_code.co_filename.startswith(SOURCE) else None
        if event == "line" and lines is not None:
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    directory = Path(tempfile.mkdtemp())
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_S)
    if lines is not None:
        sys.settrace(trace)
    try:
        target(directory, data)
    except ConceptloaderError as error:
        return type(error).__name__
    finally:
        sys.settrace(None)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        shutil.rmtree(directory)
    return "accepted"


def seeds(name, template):
    """The kept inputs of a target, and those that are made."""
    kept = [data for path, data in archives.read(CORPUS).items() if path.startswith(f"{name}/")]
    return kept + made_inputs(template).get(name, [])


def measured(target, data):
    """`attempt`, with its memory measured: what is taken for an input is bounded."""
    tracemalloc.start()
    try:
        outcome = attempt(target, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES, f"{peak} bytes of memory for an input of {len(data)}"
    return outcome


def last_input(name):
    """The input that is being tried: what is left of it after a crash."""
    return Path(tempfile.gettempdir()) / f"conceptloader-fuzz-{os.getuid()}-{name}.bin"


def fuzz(name, target, pool, seconds):
    """pool: the inputs to begin with. Returns: how many inputs were tried, and how many reached something new."""
    rng = np.random.default_rng(int(time.time()) if KEEP else 0)
    pool, seen = list(pool), set()
    for data in pool:
        attempt(target, data, seen)
    found, tried, end, last = [], 0, time.monotonic() + seconds, last_input(name)
    while time.monotonic() < end:
        data, lines = mutate(pool[int(rng.integers(len(pool)))], pool, rng), set()
        last.write_bytes(data)
        if tried % 8:
            attempt(target, data, lines)
        else:
            measured(target, data)
        tried += 1
        if not lines <= seen:
            seen |= lines
            pool.append(data)
            found.append(data)
    if found and KEEP:
        new = {f"{name}/{hashlib.sha256(data).hexdigest()[:12]}.bin": data for data in found}
        archives.write(CORPUS, {**archives.read(CORPUS), **new})
    return tried, len(found)
