"""Coverage-guided mutation: an input that reaches a line which none has reached before is kept, and mutated further.

python -m tests.hostile.fuzz manifest 60      60 seconds; what is new goes to tests/hostile/corpus/manifest
"""

import hashlib
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import conceptloader
from conceptloader.errors import ConceptloaderError
from tests.hostile.targets import Target, Template, targets

CORPUS = Path(__file__).parent / "corpus"
SOURCE = str(Path(conceptloader.__file__).parent)
HANG_S = 60
WORDS = [
    b"[" * 300, b'{"a":' * 300, b"NaN", b"-Infinity", b"1e999", b"null", b"true", b'""', b"[]", b"{}", b"-1", b"0",
    b"18446744073709551616", b"1152921504606846976", b"4294967295", b"0.5", b"\xff\xfe", b"\x00", b"\\ud800", b"\n",
    b"../../../../etc/passwd", b"/etc/passwd", b"!!python/object/apply:os.system ['true']", b"&a [*a]", b"<<: *a",
    b"dense", b"spans", b"pickle", b"os.system", b'"version": 2', b"'", b'"', b",", b":", b"- ", b"  ",
]  # fmt: skip


def mutate(data: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
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


def attempt(target: Target, data: bytes, lines: set[Any] | None = None) -> str:
    """The error of ours that an input gives, or "accepted". lines: takes what is executed of conceptloader."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"more than {HANG_S} s")

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
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


def seeds(name: str) -> list[bytes]:
    """The kept inputs of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def fuzz(name: str, target: Target, seconds: float, seed: int = 0) -> tuple[int, list[bytes]]:
    """Returns: how many inputs were tried, and those which reached something new."""
    rng = np.random.default_rng(seed)
    pool, seen = seeds(name), set[Any]()
    for data in pool:
        attempt(target, data, seen)
    found: list[bytes] = []
    tried = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = mutate(pool[int(rng.integers(len(pool)))], pool, rng)
        lines: set[Any] = set()
        try:
            attempt(target, data, lines)
        except BaseException:
            print(f"{name}: after {tried} inputs: {data[:2000]!r}", file=sys.stderr)
            raise
        tried += 1
        if not lines <= seen:
            seen |= lines
            pool.append(data)
            found.append(data)
    return tried, found


def main() -> None:
    name, seconds = sys.argv[1], float(sys.argv[2])
    with tempfile.TemporaryDirectory() as directory:
        target = targets(Template.make(Path(directory) / "template"))[name]
        try:
            tried, found = fuzz(name, target, seconds, int(time.time()))
        except BaseException:
            traceback.print_exc()
            sys.exit(1)
    for data in found:
        (CORPUS / name / f"{hashlib.sha256(data).hexdigest()[:12]}.bin").write_bytes(data)
    print(f"{name}: {tried} inputs tried, {len(found)} kept")


if __name__ == "__main__":
    main()
