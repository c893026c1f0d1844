"""The one way in which this project compiles: the `kernel` decorator, `inlined` and `inner` for the pieces of kernels.

Machine code is cached on disk, a file for each function and signature, named by the hash of all that it depends on. So
files are never changed, only added, and processes of any versions on any machines may share a directory. A file holds
numba's own cache of that one function with a checksum, unpacked into a directory of this process for numba to load:
by itself numba does not go by what a function calls in other files, believes damage, needs a directory it can write
to, and names files by a counter that writers on two machines may both use.

Machine code runs as whoever loads it, so none is loaded that somebody else could have written (owned.py).
"""

import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numba

from conceptloader.base.lazy import forks_wait
from conceptloader.base.machine_code import file_name, text_of
from conceptloader.base.owned import distrust, distrust_file, make_directory

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

config: Any = numba.config
_LOCK_WAIT_S = 120.0
_CHECKSUM = 32
_PATIENCE_S = 2.0  # of silence, over all functions of a process
_BESIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__pycache__", "kernels")
_compile: Callable[[Any], Any] = numba.njit(nogil=True, error_model="numpy")
_inline: Callable[[Any], Any] = numba.njit(nogil=True, error_model="numpy", inline="always")
# No way in from Python, and no counting of references: an inner function owns no array. Halves the time to compile.
_BARE: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
_inner: Callable[[Any], Any] = numba.njit(nogil=True, error_model="numpy", **_BARE)


def kernel(function: F) -> F:
    """Compile on first call, with the GIL released; the machine code is cached on disk.

    Division by zero follows numpy (no exception), so a kernel must check its divisors itself.
    """
    dispatcher = _compile(function)
    compile_signature = dispatcher.compile

    def compile_cached(signature: Any) -> Any:
        with forks_wait:
            if signature in dispatcher.overloads:
                return compile_signature(signature)
            return _compile_cached(dispatcher, functools.partial(compile_signature, signature), text_of(signature))

    dispatcher.compile = compile_cached
    compiled: F = dispatcher
    return compiled


def inlined(function: F) -> F:
    """A piece of a kernel that is pasted into it before LLVM sees it: a loop with a call in it is never vectorized."""
    compiled: F = _inline(function)
    return compiled


def inner(function: F) -> F:
    """A function that only kernels call: a part of their machine code. It cannot make arrays nor return them."""
    compiled: F = _inner(function)
    return compiled


def cache_directories() -> list[str]:
    """Where machine code is looked for, and written to the first one that can be.

    $NUMBA_CACHE_DIR if it is set; or else beside the package, which an administrator can warm, and the user's cache.
    """
    if config.CACHE_DIR:
        return [os.path.abspath(os.path.join(config.CACHE_DIR, "conceptloader"))]
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return [_BESIDE, *([os.path.abspath(os.path.join(user, "conceptloader"))] if os.path.isabs(user) else [])]


def _directories() -> list[str]:
    """Those of them that can be used; if none can be written to, also one that processes of a machine share."""
    directories = [path for path in cache_directories() if _usable(path)]
    if not any(os.access(path, os.W_OK) for path in directories):
        directories += filter(_usable, [_last_resort()])
    return directories


def _last_resort() -> str:
    return os.path.join(tempfile.gettempdir(), f"conceptloader-{os.geteuid()}")


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


def _compile_cached(dispatcher: Any, compile_now: Callable[[], Any], signature: str) -> Any:
    """compile_now(), while numba's cache of this function is a directory of our own that holds what the disk has."""
    only_loads = getattr(_thread, "only_loads", False)
    with contextlib.suppress(OSError):  # without sources or room on a disk it is compiled nevertheless
        name = file_name(dispatcher.py_func, signature, __file__)
        directories = _directories()
        packed = _load(directories, name)
        with contextlib.ExitStack() as stack:
            if packed is None:
                if only_loads:
                    raise NotCompiledError(name)
                stack.enter_context(_announced())
                stack.enter_context(_machine_lock(directories[0]) if directories else contextlib.nullcontext())
            packed = packed or _load(directories, name)
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="conceptloader-"))
            if _let_numba_cache(dispatcher, scratch, packed):
                entry = compile_now()
                now = {str(file.relative_to(scratch)): file.read_bytes() for file in Path(scratch).rglob("*.nb?")}
                if now and now != packed:
                    _save(directories, name, now)
                return entry
    if only_loads:
        raise NotCompiledError(dispatcher.py_func.__name__)
    return compile_now()


def _let_numba_cache(dispatcher: Any, scratch: str, packed: dict[str, bytes] | None) -> bool:
    """Whether numba agrees to keep its cache of a function in `scratch`, and nowhere else."""
    for path, data in (packed or {}).items():
        os.makedirs(os.path.dirname(os.path.join(scratch, path)), exist_ok=True)
        Path(scratch, path).write_bytes(data)
    before, config.CACHE_DIR = config.CACHE_DIR, scratch
    try:
        attempt = _compile(dispatcher.py_func)
        attempt.enable_caching()
        agreed = str(attempt.stats.cache_path).startswith(scratch)
        if agreed:
            dispatcher.enable_caching()
    except RuntimeError:  # a function without a file
        return False
    finally:
        config.CACHE_DIR = before
    return agreed


def _load(directories: list[str], name: str) -> dict[str, bytes] | None:
    """The files of numba's cache that `name` holds; None if it is nowhere, damaged, or not ours."""
    for directory in directories:
        path = os.path.join(directory, name)
        with contextlib.suppress(OSError):
            with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                if reason := distrust_file(os.fstat(file.fileno())):
                    _warn(path, reason)
                    continue
                checksum, data = file.read(_CHECKSUM), file.read()
            if hashlib.blake2b(data, digest_size=_CHECKSUM).digest() == checksum:
                packed: dict[str, bytes] = pickle.loads(data)
                return packed
    return None


def _save(directories: list[str], name: str, packed: dict[str, bytes]) -> None:
    """Into the first directory that takes it; the file has its name only when it is complete."""
    data = pickle.dumps(packed)
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
            if directory != _last_resort():
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
_held = 0


@contextlib.contextmanager
def _machine_lock(directory: str) -> Iterator[None]:
    """One process of a machine compiles into a directory; the others wait for its file."""
    global _held
    _held += 1
    try:
        with one_of_a_machine(directory) if _held == 1 else contextlib.nullcontext():  # a kernel calls another one
            yield
    finally:
        _held -= 1


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
