"""The one way in which this project compiles: the `kernel` decorator, `inlined` and `inner` for the pieces of kernels.

Machine code is cached on disk, a file for each function, signature and processor, named after everything it depends on.
So files are never changed, only added: any number of processes of any versions on any machines may share a directory.
numba's own cache does not go by what a function calls in other files, and its index may name a file of another writer.
"""

import contextlib
import fcntl
import gc
import hashlib
import logging
import os
import pickle
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import llvmlite
import numba
import numba.core.caching
import numba.core.compiler
import numba.core.config
import numba.core.dispatcher
import numba.core.serialize
import numba.extending
import numpy as np

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

# Parts of numba without types. All have been there, in this form, since before 0.59.
config: Any = numba.core.config
rebuild: Any = numba.core.compiler.CompileResult._rebuild
dumps: Any = numba.core.serialize.dumps
Dispatcher: Any = numba.core.dispatcher.Dispatcher
Intrinsic: Any = vars(numba.extending)["_Intrinsic"]

_LOCK_WAIT_S = 120.0
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
    dispatcher._cache = cache = KernelCache(function)
    compile_signature = dispatcher.compile

    def compile_once(signature: Any) -> Any:
        """One process of a machine compiles; the others wait for its file."""
        with _threads, contextlib.nullcontext() if cache.has(signature, dispatcher.targetctx) else _compiling():
            return compile_signature(signature)

    dispatcher.compile = compile_once
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


def numbered(count: int) -> tuple[int, ...]:
    """0 to count - 1 as constants for kernels, of type int64.

    A plain integer would be a type of its own, and every function that is called with it compiled once more.
    """
    return tuple(map(np.int64, range(count)))


def cache_directories() -> list[str]:
    """Where machine code is looked for, and written to the first one that can be.

    $NUMBA_CACHE_DIR if it is set; or else beside the package, which an administrator can warm, and the user's cache.
    """
    if config.CACHE_DIR:
        return [os.path.join(config.CACHE_DIR, "conceptloader")]
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__pycache__", "kernels")
    return [beside, *([os.path.join(user, "conceptloader")] if os.path.isabs(user) else [])]


class KernelCache(numba.core.caching._Cache):
    """Takes the place of numba's cache of one function. A file is a checksum and a pickle of the machine code."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._digest: str | None = None
        self._enabled = True

    @property
    def cache_path(self) -> str:
        return cache_directories()[0]

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        """Nothing: files are valid as long as their names are asked for."""

    def has(self, signature: Any, target_context: Any) -> bool:
        """Whether a file is there."""
        name = self._file_name(signature, target_context)
        return self._enabled and any(os.path.exists(os.path.join(path, name)) for path in cache_directories())

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        target_context.refresh()
        name = self._file_name(signature, target_context)
        for path in cache_directories() if self._enabled else ():
            payload = _read(os.path.join(path, name))
            if payload is not None:
                return rebuild(target_context, *payload)
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        if not self._enabled or result.library.has_dynamic_globals or result.lifted:
            return
        name = self._file_name(signature, result.target_context)
        data = dumps(result._reduce())
        for path in cache_directories():
            with contextlib.suppress(OSError):
                _write(os.path.join(path, name), data)
                return
        logger.warning(
            "compiled code can be cached in none of %s: every process compiles for itself; set NUMBA_CACHE_DIR",
            cache_directories(),
        )

    def _file_name(self, signature: Any, target_context: Any) -> str:
        if self._digest is None:
            digest = hashlib.blake2b(digest_size=16)
            _add_function(digest, self._function, set())
            self._digest = digest.hexdigest()
        depends = (
            self._digest, str(signature), target_context.codegen().magic_tuple(), numba.__version__,
            llvmlite.__version__, np.__version__, sys.implementation.cache_tag, config.BOUNDSCHECK, config.OPT,
            config.LOOP_VECTORIZE, config.SLP_VECTORIZE, config.DEBUGINFO_DEFAULT,
        )  # fmt: skip
        suffix = hashlib.blake2b(repr(depends).encode(), digest_size=16).hexdigest()
        return f"{self._function.__name__}-{suffix}.kernel"


def _read(path: str) -> Any:
    """What a file holds; None if there is none, or it is damaged."""
    try:
        with open(path, "rb") as file:
            checksum, data = file.read(32), file.read()
    except OSError:
        return None
    return pickle.loads(data) if hashlib.blake2b(data, digest_size=32).digest() == checksum else None


def _write(path: str, data: bytes) -> None:
    """Write a file that has its name only when it is complete. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.blake2b(data, digest_size=32).digest() + data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _add_function(digest: Any, function: Any, seen: set[int]) -> None:
    """Everything of this project that the machine code of `function` depends on: its code, and what it refers to."""
    if id(function) in seen:
        return
    seen.add(id(function))
    codes, names = [function.__code__], set()
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        constants = [value for value in code.co_consts if not isinstance(value, types.CodeType)]
        codes += [value for value in code.co_consts if isinstance(value, types.CodeType)]
        digest.update(repr((code.co_name, code.co_code, code.co_names, code.co_varnames, constants)).encode())
    for name in sorted(names & function.__globals__.keys()):
        digest.update(name.encode())
        _add_value(digest, function.__globals__[name], seen)


def _add_value(digest: Any, value: Any, seen: set[int]) -> None:
    if isinstance(value, Dispatcher):
        digest.update(repr(sorted(value.targetoptions.items(), key=str)).encode())
        _add_function(digest, value.py_func, seen)
    elif isinstance(value, Intrinsic):
        _add_function(digest, value._defn, seen)
    elif isinstance(value, (bool, int, float, str, tuple, np.generic)):
        digest.update(repr(value).encode())
    elif isinstance(value, types.ModuleType) and value.__name__.startswith(f"{__package__}."):
        with open(str(value.__file__), "rb") as file:
            digest.update(file.read())
    else:
        digest.update(getattr(value, "__name__", type(value).__name__).encode())


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Compiling makes many objects; searching all of PyTorch for garbage again and again takes as long as loading."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_threads = threading.RLock()
_held = 0
# LLVM's own lock, held by a thread at a fork, would stay locked in the child for ever: a fork waits for compilations.
os.register_at_fork(before=_threads.acquire, after_in_parent=_threads.release, after_in_child=_threads.release)


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Hold this machine's lock on compiling. It only saves work: no process waits for it longer than _LOCK_WAIT_S."""
    global _held
    with _threads:
        _held += 1
        try:
            with _machine_lock() if _held == 1 else contextlib.nullcontext():
                yield
        finally:
            _held -= 1


@contextlib.contextmanager
def _machine_lock() -> Iterator[None]:
    path = os.path.join(tempfile.gettempdir(), f"conceptloader-{os.getuid()}.lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield
        return
    try:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
