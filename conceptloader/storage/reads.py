"""Positioned reads of local files, and trying again what may pass.

Files are read with pread, never mapped: a random window of a cold mapped file costs a thousand times more than a read,
and a file that is truncated under a mapping ends the process with SIGBUS instead of an error.
"""

import atexit
import errno
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from conceptloader.base.terminal import masked
from conceptloader.errors import FormatError, ReadError

logger = logging.getLogger(__name__)

T = TypeVar("T")

# What reads come down to, as names of their own: tests of faults put others in their place.
pread, open_descriptor, sleep, monotonic = os.pread, os.open, time.sleep, time.monotonic

_MAX_PREAD = 1 << 30  # Linux reads at most 2 GiB - 4 KiB in one call

# Faults that may pass: a signal, a medium or a server that hiccups, a handle that went stale when a server restarted.
HEALING = frozenset(
    {errno.EINTR, errno.EAGAIN, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ECONNRESET}
    | {errno.ECONNABORTED, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.ENETDOWN}
)
BACKOFF_S = (0.01, 0.04, 0.16, 0.64, 2.5, 10.0, 30.0)
"""Seconds before each further attempt; 43 s in all, far below the loader's timeout_s."""


counts = {"retries": 0, "bytes": 0}
"""Of this process: attempts after the first, and bytes that came from object stores."""


TOLD_S = 60.0
"""Seconds between two log lines about attempts that fail in one place."""

faults: dict[str, tuple[float, int]] = {}
"""Place (a store, or the file systems) -> when an attempt that failed there was last logged, how many failed since."""


def _tell(message: str, wait_s: float) -> None:
    """Log an attempt that failed and will be repeated, unless one of the same place was logged within TOLD_S."""
    store = re.search(r"[\w.+-]+://[^/\s]*", message)
    place, now = store[0].rstrip(":") if store else "file systems", monotonic()
    told, others = faults.get(place, (now - TOLD_S, 0))
    if now - told < TOLD_S:
        faults[place] = told, others + 1
        return
    faults[place] = now, 0
    since = f"; {others:,} other attempts failed there since the last such line" if others else ""
    logger.warning("%s; trying again in %g s%s", masked(message), wait_s, since)


@atexit.register
def tell_all() -> None:
    """Log how many attempts failed since the last line about each place."""
    for place, (_, others) in list(faults.items()):  # threads may still read
        if others:
            logger.warning("%s: %s other attempts failed since the last line about it", masked(place), f"{others:,}")
    faults.clear()


class _GaveUp(ReadError):
    """After all attempts: whoever waits for a read of somebody else makes none of its own."""


def retrying(action: Callable[[], T], progress: Callable[[], object] = bool) -> T:
    """`action()`, again and again while it fails with what may pass, as often as BACKOFF_S says.

    progress: how far an action of many reads has come. When that is not where it was at the last failure, what failed
    then has passed, and attempts are counted from zero again.
    Raises: its ReadError, with the number of attempts when it did not pass.
    """
    failed, failed_at = 0, object()
    while True:
        try:
            return action()
        except ReadError as error:
            if error.errno not in HEALING or isinstance(error, _GaveUp):
                raise
            if (now := progress()) != failed_at:
                failed, failed_at = 0, now
            if failed == len(BACKOFF_S):
                place = "the store and the network" if "://" in error.path else "the file system"
                fix = f"it failed {failed + 1} times in {sum(BACKOFF_S):.0f} s; check {place}"
                fix = f"{error.fix}; {fix}" if error.fix else fix
                raise _GaveUp(error.path, error.found, error.expected, fix, errno=error.errno) from error
            _tell(str(error), BACKOFF_S[failed])
        sleep(BACKOFF_S[failed])
        failed += 1
        counts["retries"] += 1


def read_at(descriptor: int, offset: int, size: int, name: str) -> bytes:
    """Exactly `size` bytes from `offset` on, put together from short reads.

    Every positioned read of the project's Python code is this call.

    Raises: ReadError when the operating system fails or the file ends early; it names file and offset.
    """
    parts: list[bytes] = []
    while True:
        try:
            part = pread(descriptor, min(size, _MAX_PREAD), offset)
        except OSError as error:
            message = f"cannot read {size} bytes at offset {offset}: {error.strerror}"
            raise ReadError(name, message, errno=error.errno) from error
        if len(part) == size and not parts:
            return part
        if not part and size:
            raise ReadError(
                name,
                f"the end at byte {offset}",
                f"{size} more bytes",
                "the file was truncated after it was opened: restore it, then run `conceptloader verify DATASET`",
                errno=errno.ENODATA,
            )
        parts.append(part)
        offset += len(part)
        size -= len(part)
        if not size:
            return b"".join(parts)


def open_file(path: str, flags: int = 0) -> int:
    """A read-only descriptor. flags: of the system, besides. Raises: ReadError naming the file."""
    with named(path, "opened"):
        # Not blocking: a fifo in place of a file must not wait for a writer.
        return open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)


def read_file(path: str, limit: int, opener: Callable[[str], int] = open_file) -> bytes:
    """A whole small file (a manifest, a vocabulary).

    Raises: ReadError if it cannot be read, FormatError if it is larger than `limit` bytes.
    """

    def whole() -> bytes:
        with opened(path, opener) as descriptor:
            with named(path, "read"):
                size = os.fstat(descriptor).st_size
            if size > limit:
                raise FormatError(
                    path,
                    f"{size} bytes",
                    f"at most {limit}",
                    "pass the path of a file of conceptloader: this is another kind",
                )
            return read_at(descriptor, 0, size, path)

    return retrying(whole)


@contextmanager
def named(path: str, done: str) -> Iterator[None]:
    """Errors of the system in the block as ReadErrors: this file cannot be `done`."""
    try:
        yield
    except ReadError:
        raise
    except OSError as error:
        raise ReadError(
            path,
            f"cannot be {done}: {error.strerror or error}",
            errno=error.errno,
            fix=f"run `ls -ld {path}`: it must exist, and you must be allowed to use it",
        ) from error


@contextmanager
def opened(path: str, opener: Callable[[str], int] = open_file) -> Iterator[int]:
    """A descriptor of `opener`, closed at the end."""
    descriptor = opener(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
