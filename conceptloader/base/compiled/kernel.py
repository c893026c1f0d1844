"""Kernels: functions that are compiled and run without the GIL.

Numba is their compiler, and nothing more: what it makes of a kernel is kept as an object file, which llvmlite puts into
memory and ctypes calls. So a process whose cache has all it needs never imports numba. Arguments are laid out as
numbers in a block of memory, once for all calls with the same arrays (`Kernel.bind`).
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from conceptloader.base.compiled.cache import machine_code
from conceptloader.base.compiled.code import ALIGNED, CONTIGUOUS, WRITABLE, Code, Kind, inner
from conceptloader.base.lazy import forks_wait

P = ParamSpec("P")
R = TypeVar("R")

_FLAGS = CONTIGUOUS | ALIGNED | WRITABLE
_INT64, _UINT64 = range(-(1 << 63), 1 << 63), range(1 << 64)
_NUMBERS = {int, bool, np.bool_, *(np.dtype(code).type for code in "bhilqBHILQ")}


class Kernel(Generic[P, R]):
    """A function that is compiled when it is first called, once for each combination of kinds of its arguments.

    Those are arrays, integers, and tuples of them; keywords are not taken. Division by zero follows numpy (no
    exception), so a kernel must check its divisors itself; it cannot make arrays, raise exceptions, nor return anything
    but an integer. Compiled by other kernels it is a part of their machine code.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self.codes = function, dict[tuple[Kind, ...], Code]()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        run = self.bind(*args, **kwargs)
        if run():
            raise self.stopped()
        found, result = run.block[0], run.code.result
        return found if result is None else result(found)  # type: ignore[no-any-return]

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The call with these arguments, which it keeps alive; what is in arrays may change from call to call.

        Returns: a function without arguments, for one thread at a time, that returns 0, or something else where the
        kernel was `stopped`; what the kernel returned is the first word of its `block`.
        """
        words = [0]
        kinds = tuple([lay_out(value, words) for value in args])
        code = self.codes.get(kinds) or self._find(kinds)
        # At the end what numba's calling convention writes of its own.
        block = (code.word * (len(words) + 2))(*words)
        address = ctypes.addressof(block)
        own = address + 8 * len(words)
        run: Any = functools.partial(code.run, own, own + 8, address)
        run.code, run.block, run.kept = code, block, args
        return run

    def stopped(self) -> IndexError:
        """What a call that does not return 0 means."""
        return IndexError(f"{self.py_func.__name__}: an index is out of its array's bounds (NUMBA_BOUNDSCHECK)")

    def _find(self, kinds: tuple[Kind, ...]) -> Code:
        with forks_wait:  # LLVM has a lock of its own, which the child of a fork would find locked
            if kinds not in self.codes:
                self.codes[kinds] = Code(*machine_code(self.py_func, kinds))
            return self.codes[kinds]


def lay_out(value: Any, words: list[int]) -> Kind:
    """Append an argument to `words`, an array as its address as an object. Returns: its kind."""
    kind = type(value)
    if kind in _NUMBERS:
        words.append(int(value))
        if kind is int and value not in _INT64:
            if value not in _UINT64:
                raise OverflowError(f"found {value} for a kernel, expected an integer of 64 bits")
            return np.uint64
        return kind
    if isinstance(value, np.ndarray):
        words.append(id(value))
        return np.ndarray, value.dtype, value.ndim, value.flags.num & _FLAGS
    if isinstance(value, tuple):
        return kind, tuple([lay_out(part, words) for part in value])
    raise TypeError(f"found a {kind.__name__} for a kernel, expected arrays, integers and tuples of them")


def kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """Compile on first call; the machine code is cached on disk."""
    return Kernel(inner(function))
