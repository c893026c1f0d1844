"""Kernels: functions that are compiled and run without the GIL; `inlined` and `inner` for the pieces of kernels.

Numba is their compiler, and nothing more: what it makes of a kernel is kept as an object file, which llvmlite puts into
memory and ctypes calls. So a process whose cache has all it needs never imports numba. Arguments are laid out as
numbers in a block of memory, once for all calls with the same arrays (`Kernel.bind`).
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from conceptloader.base.lazy import forks_wait

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

Kind = Any
"""A type as far as machine code depends on it: the class of a number; (class of a tuple, its kinds); (ndarray, dtype,
dimensions, those of numpy's flags that count)."""

CONTIGUOUS, ALIGNED, WRITABLE = 0x1, 0x100, 0x400  # as numpy's C API numbers them
_FLAGS = CONTIGUOUS | ALIGNED | WRITABLE
_INT64 = range(-(1 << 63), 1 << 63)
_NUMBERS = {int, bool, np.bool_, *(np.dtype(code).type for code in "bhilqBHILQ")}
_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)
_RESULTS: dict[str, tuple[Any, Any]] = {
    "int64": (ctypes.c_int64, None), "uint64": (ctypes.c_uint64, None), "bool": (ctypes.c_uint64, bool),
    "none": (ctypes.c_uint64, lambda _: None),
}  # fmt: skip


class Code:
    """Machine code in memory. made: see cache.py; cached: whether it was on disk; word: ctypes of what it returns;
    result: makes something else of it, unless it is None."""

    def __init__(self, made: Any, cached: bool) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(made.code))
        self._engine.finalize_object()
        self.run = _RUN(self._engine.get_function_address(made.symbol))
        (self.word, self.result), self.cached = _RESULTS[made.result], cached


class Kernel(Generic[P, R]):
    """A function that is compiled when it is first called, once for each combination of kinds of its arguments.

    Those are arrays, integers, and tuples of them. Division by zero follows numpy (no exception), so a kernel must
    check its divisors itself; it cannot make arrays, raise exceptions, nor return anything but an integer. Compiled by
    other kernels it is a part of their machine code.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self.codes = function, dict[tuple[Kind, ...], Code]()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.bind(*args, **kwargs)()

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Callable[[], R]:
        """A call with these arguments, for one thread at a time, as often as it likes. It keeps them alive; what is in
        their arrays may change in between. Keywords are not taken."""
        words = [0]
        kinds = tuple([lay_out(value, words) for value in args])
        code = self.codes.get(kinds) or self._find(kinds)
        # What it returns first; at the end what numba's calling convention writes of its own.
        block = (code.word * (len(words) + 2))(*words)
        address = ctypes.addressof(block)
        own, run, result = address + 8 * len(words), code.run, code.result

        def call(kept: Any = args) -> Any:
            if run(own, own + 8, address):
                raise IndexError(f"{self.py_func.__name__}: an index is out of its array's bounds")
            return result(block[0]) if result else block[0]

        return call

    def _find(self, kinds: tuple[Kind, ...]) -> Code:
        from conceptloader.base.compiled.cache import machine_code

        with forks_wait:  # LLVM has a lock of its own, which the child of a fork would find locked
            if kinds not in self.codes:
                self.codes[kinds] = Code(*machine_code(self.py_func, kinds))
            return self.codes[kinds]


def lay_out(value: Any, words: list[int]) -> Kind:
    """Append an argument to `words`, an array as its address as an object. Returns: its kind."""
    kind = type(value)
    if kind is np.ndarray:
        words.append(id(value))
        return kind, value.dtype, value.ndim, value.flags.num & _FLAGS
    if kind in _NUMBERS:
        words.append(int(value))
        return np.uint64 if kind is int and value not in _INT64 else kind
    if isinstance(value, tuple):
        return kind, tuple([lay_out(part, words) for part in value])
    raise TypeError(f"found a {kind.__name__} for a kernel, expected arrays, integers and tuples of them")


def kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """Compile on first call; the machine code is cached on disk."""
    return Kernel(function)


def inner(function: F) -> F:
    """A function that only kernels call: a part of their machine code."""
    return _piece(function, "never")


def inlined(function: F) -> F:
    """A piece of a kernel that is pasted into it before LLVM sees it: a loop with a call in it is never vectorized."""
    return _piece(function, "always")


def _piece(function: F, inline: str) -> F:
    function.inline = inline  # type: ignore[attr-defined]
    return function


class Lowered:
    """What only kernels can call: a name in lowering.py, which is not imported before something is compiled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any) -> Any:
        raise TypeError(f"{self.name}: called outside of a kernel")
