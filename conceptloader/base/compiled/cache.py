"""Machine code on disk: a file for each kernel and kinds of arguments, named by the hash of all that it depends on.

So files are never changed, only added, and processes of any versions on any machines may share a directory. Machine
code runs as whoever loads it, so none is loaded that somebody else could have written (owned.py).
"""

import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from conceptloader.base.compiled.code import Made
from conceptloader.base.compiled.names import file_name
from conceptloader.base.owned import distrust, distrust_file, make_directory

logger = logging.getLogger(__name__)

_LOCK_WAIT_S = 120.0
_CHECKSUM = 32
_PATIENCE_S = 2.0  # of silence, over all functions of a process
_BESIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__pycache__", "kernels")


def cache_directories() -> list[str]:
    """Where machine code is looked for, and written to the first one that can be.

    $NUMBA_CACHE_DIR if it is set; or else beside the package, which an administrator can warm, and the user's cache.
    """
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return [os.path.abspath(os.path.join(given, "conceptloader"))]
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return [_BESIDE, *([os.path.abspath(os.path.join(user, "conceptloader"))] if os.path.isabs(user) else [])]


def _directories() -> list[str]:
    """Those of them that can be used; if none can be written to, also one that processes of a machine share."""
    directories = [path for path in cache_directories() if _usable(path)]
    if not any(os.access(path, os.W_OK) for path in directories):
        with contextlib.suppress(OSError):  # there is no temporary directory either
            shared = os.path.join(tempfile.gettempdir(), f"conceptloader-{os.geteuid()}")
            directories += filter(_usable, [shared])
    return directories


class NotCompiledError(Exception):
    """Machine code is in none of the directories, in a block that only loads."""


@contextlib.contextmanager
def only_loading() -> Iterator[None]:
    """In the block, this thread compiles nothing. Raises: NotCompiledError where it would have to."""
    _thread.only_loads = True
    try:
        yield
    finally:
        _thread.only_loads = False


def machine_code(function: Callable[..., Any], kinds: tuple[Any, ...]) -> tuple[Made, bool]:
    """Of a kernel for arguments of some kinds, and whether it was there. Raises: NotCompiledError, see only_loading."""
    name, directories = None, list[str]()
    with contextlib.suppress(OSError):  # without sources it is compiled nevertheless
        name, directories = file_name(function, kinds), _directories()
    if name is not None and (made := _load(directories, name)):
        return made, True
    if getattr(_thread, "only_loads", False):
        raise NotCompiledError(function.__name__)
    with _announced(), one_of_a_machine(directories[0]) if directories else contextlib.nullcontext():
        if name is not None and (made := _load(directories, name)):  # another process did it meanwhile
            return made, True
        from conceptloader.base.compiled.lowering import compile_kernel

        made = compile_kernel(function, kinds)
        if name is not None:
            _save(directories, name, made)
        return made, False


def _load(directories: list[str], name: str) -> Made | None:
    """What the file `name` holds; None if it is nowhere, damaged, or not ours."""
    for directory in directories:
        path = os.path.join(directory, name)
        with contextlib.suppress(OSError):
            with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                if reason := distrust_file(os.fstat(file.fileno())):
                    _warn(path, reason)
                    continue
                checksum, data = file.read(_CHECKSUM), file.read()
            if hashlib.blake2b(data, digest_size=_CHECKSUM).digest() == checksum:
                symbol, result, code = data.split(b"\n", 2)
                return Made(symbol.decode(), result.decode(), code)
    return None


def _save(directories: list[str], name: str, made: Made) -> None:
    """Into the first directory that takes it; the file has its name only when it is complete."""
    data = b"\n".join([made.symbol.encode(), made.result.encode(), made.code])
    for directory in directories:
        with contextlib.suppress(OSError):
            descriptor, temporary = tempfile.mkstemp(dir=directory, suffix=".tmp")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(hashlib.blake2b(data, digest_size=_CHECKSUM).digest() + data)
                os.chmod(temporary, 0o644)
                os.replace(temporary, os.path.join(directory, name))
            except BaseException:
                os.unlink(temporary)
                raise
            if directory in cache_directories():
                return
            break
    _warn(", ".join(cache_directories()), "none of them can be used")


def _usable(directory: str) -> bool:
    """Whether machine code in `directory`, made here if it is missing, may be run; a warning says why not.

    Beside the package nothing above it counts: who can write there can change the package itself.
    """
    try:
        make_directory(directory)
        reason = distrust(directory, above=directory != _BESIDE)
    except OSError:  # it can't be made: the next one may do, and _save says when none does
        return False
    if reason:
        _warn(directory, reason)
    return not reason


_spent_s = 0.0


@contextlib.contextmanager
def _announced() -> Iterator[None]:
    """What is done in the block is said if it takes this process, with all such blocks before, some seconds."""
    global _spent_s
    timer, start = threading.Timer(max(0.0, _PATIENCE_S - _spent_s), _announce), time.monotonic()
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _spent_s += time.monotonic() - start


@functools.cache
def _announce() -> None:
    """Once a process; a warning, since without a configured log nothing less is seen."""
    logger.warning(
        "compiling the reader for this processor, which takes up to a minute, once a machine: it is kept in %s; "
        "`conceptloader warmup` does it ahead",
        " or ".join(cache_directories()),
    )


@functools.cache
def _warn(path: str, reason: str) -> None:
    """Once a process."""
    remedy = "compiled again unless another directory has it; set NUMBA_CACHE_DIR to one that only you can write to"
    logger.warning("compiled code is not used from, nor kept in, %s: %s; it is %s", path, reason, remedy)


_thread = threading.local()


@contextlib.contextmanager
def one_of_a_machine(what: str, patience_s: float = _LOCK_WAIT_S) -> Iterator[None]:
    """One process of this user and machine at a time is in a block of this name. It only saves work: nobody waits for
    longer than patience_s, nor for a lock that another user made."""
    name = hashlib.blake2b(what.encode(), digest_size=8).hexdigest()
    descriptor = None
    with contextlib.suppress(OSError):
        path = os.path.join(tempfile.gettempdir(), f"conceptloader-{os.geteuid()}-{name}.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + patience_s
        while descriptor is not None and not distrust_file(os.fstat(descriptor)) and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.02)
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a forked child may have it, too
            os.close(descriptor)
