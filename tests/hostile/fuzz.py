"""Coverage-guided mutation: an input that reaches a line which none has reached before is kept, and mutated further.

python -m tests.hostile.fuzz 300                       all targets, 300 seconds in all: `make fuzz SECONDS=300`
python -m tests.hostile.fuzz --keep manifest yaml 60   these; what is new goes to tests/hostile/corpus.tar.xz

Each target runs in a process of its own: one that crashes, or hangs in compiled code, is named with its last input.
"""

import argparse
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest

import conceptloader
from conceptloader.errors import ConceptloaderError
from conceptloader.storage import durable
from tests import archives
from tests.hostile.targets import Template, made_inputs, targets

CORPUS = Path(__file__).with_name("corpus.tar.xz")  # <target>/<name>: an input that reached something new
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
    """A few edits: words put in; slices removed, repeated, taken from other inputs; bytes and digits changed."""
    for _ in range(int(rng.integers(1, 5))):
        at, size = int(rng.integers(0, len(data) + 1)), int(rng.geometric(0.1))
        kind = int(rng.integers(8))
        if kind == 0:
            data = data[:at] + WORDS[int(rng.integers(len(WORDS)))] + data[at:]
        elif kind == 1:
            data = data[:at] + WORDS[int(rng.integers(len(WORDS)))] + data[at + size :]
        elif kind == 2:
            data = data[:at] + data[at + size :]
        elif kind == 3:
            data = data[: at + size] + data[at:]
        elif kind == 4:
            other = others[int(rng.integers(len(others)))]
            begin = int(rng.integers(0, len(other) + 1))
            data = data[:at] + other[begin : begin + 4 * size] + data[at:]
        elif kind == 5 and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]
        elif kind == 6:
            digits = [i for i, byte in enumerate(data[:5000]) if 48 <= byte < 58]
            if digits:
                at = digits[int(rng.integers(len(digits)))]
                data = data[:at] + str(int(rng.integers(10))).encode() + data[at + 1 :]
        else:
            data = data[:at] + int(rng.choice([0, 1, 2**31, 2**60, 2**63])).to_bytes(8, "little") + data[at + 8 :]
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


def fuzz(name, target, pool, seconds, seed=0):
    """pool: the inputs to begin with. Returns: how many inputs were tried, and those which reached something new."""
    rng = np.random.default_rng(seed)
    pool, seen = list(pool), set()
    for data in pool:
        attempt(target, data, seen)
    found = []
    tried = 0
    end = time.monotonic() + seconds
    last = last_input(name)
    while time.monotonic() < end:
        data = mutate(pool[int(rng.integers(len(pool)))], pool, rng)
        lines = set()
        last.write_bytes(data)
        try:
            if tried % 8:
                attempt(target, data, lines)
            else:
                measured(target, data)
        except BaseException:
            print(f"{name}: after {tried} inputs, the whole of it in {last}: {data[:2000]!r}", file=sys.stderr)
            raise
        tried += 1
        if not lines <= seen:
            seen |= lines
            pool.append(data)
            found.append(data)
    return tried, found


def one(name, seconds, keep):
    """Fuzz a target in this process."""
    logging.disable()
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(durable.os, "fsync", lambda descriptor: None)  # most of the time of small builds
        template = Template.make(Path(directory) / "template")
        tried, found = fuzz(name, targets(template)[name], seeds(name, template), seconds, int(time.time()))
    if found and keep:
        new = {f"{name}/{hashlib.sha256(data).hexdigest()[:12]}.bin": data for data in found}
        archives.write(CORPUS, {**archives.read(CORPUS), **new})
    print(f"{name}: {tried} inputs tried, {len(found)} reached something new", flush=True)


def several(names, seconds, keep):
    """Fuzz targets one after another, each in a process of its own. Returns: those in which something was found."""
    failed = []
    for name in names:
        command = [sys.executable, "-m", "tests.hostile.fuzz", *(["--keep"] if keep else []), name]
        try:
            status = subprocess.run([*command, str(seconds / len(names))], timeout=seconds + 10 * HANG_S).returncode
        except subprocess.TimeoutExpired:
            status = "a hang"
        if status:
            print(f"{name}: ended with {status}; its last input is {last_input(name)}", file=sys.stderr, flush=True)
            failed.append(name)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="by default all")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--keep", action="store_true", help="put inputs that reach something new into the corpus")
    options = parser.parse_args()
    if len(options.targets) == 1:
        one(options.targets[0], options.seconds, options.keep)
        return
    failed = several(options.targets or list(NAMES), options.seconds, options.keep)
    if failed:
        sys.exit(f"found something in {', '.join(failed)}, see above")


if __name__ == "__main__":
    main()
