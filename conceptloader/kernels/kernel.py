"""Kernels: functions that were compiled when the package was built, and run without the GIL.

The annotations of a kernel's parameters are its signature: integers, arrays, and tuples of them. A call lays their
values out as words in a block of memory, an array as its address and its shape, and hands over the block's address. So
no kernel knows of Python, and one library serves all of its versions.
"""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Annotated, Any, Generic, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from conceptloader.base.lazy import lazy
from conceptloader.kernels.library import load_library

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Array = npt.NDArray[Any]
I64Array = Annotated[npt.NDArray[np.int64], np.int64]
U64Array = Annotated[npt.NDArray[np.uint64], np.uint64]

_INT64, _UINT64 = range(-(1 << 63), 1 << 63), range(1 << 64)
_PLAIN = 0x1 | 0x100  # numpy's flags of what is contiguous in C's order, and aligned
# What annotations stand for in kernels; Any is for those that take several kinds of Python's integers.
_SCALARS: dict[Any, Any] = {int: np.int64, Any: np.int64, np.int64: np.int64, np.uint64: np.uint64, bool: np.bool_}


@dataclass(frozen=True)
class Scalar:
    """An integer: int64, uint64 or bool."""

    type: Any


@dataclass(frozen=True)
class ArrayOf:
    """A contiguous array of `dimensions`."""

    dtype: np.dtype[Any]
    dimensions: int


@dataclass(frozen=True)
class TupleOf:
    """A tuple; of a named one, made is its class."""

    made: Any
    parts: "tuple[Kind, ...]"


Kind = Scalar | ArrayOf | TupleOf


def kind_of(hint: Any) -> Kind:
    """What an annotation says: an integer type, a tuple, named or not, or an array.

    Annotated[array, dtype], followed by the number of dimensions unless that is 1. What numpy's own types are made
    of differs among its versions.
    """
    if hint in _SCALARS:
        return Scalar(_SCALARS[hint])
    if get_origin(hint) is Annotated:
        _, dtype, *dimensions = get_args(hint)
        return ArrayOf(np.dtype(dtype), *(dimensions or [1]))
    if get_origin(hint) is tuple:
        return TupleOf(tuple, tuple(map(kind_of, get_args(hint))))
    if isinstance(hint, type) and issubclass(hint, tuple):
        return TupleOf(hint, tuple(map(kind_of, get_type_hints(hint, include_extras=True).values())))
    raise TypeError(f"found the annotation {hint!r}, expected integers, arrays and tuples of them")


def inner(function: F) -> F:
    """A function that only kernels call: a part of their machine code."""
    function.inline = "never"  # type: ignore[attr-defined]
    return function


def inlined(function: F) -> F:
    """A piece of a kernel that is pasted into it before LLVM sees it: a loop with a call in it is never vectorized."""
    function.inline = "always"  # type: ignore[attr-defined]
    return function


class Lowered:
    """What only kernels can call: a name in lowering.py."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any) -> Any:
        raise TypeError(f"{self.__name__}: called outside of a kernel")


class Kernel(Generic[P, R]):
    """A compiled function of integers, arrays, and tuples of them; keywords are not taken.

    Division by zero follows numpy (no exception), so a kernel must check its divisors itself; it cannot make arrays,
    raise exceptions, nor return anything but an integer. Called by other kernels it is a part of their machine code.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self.name = function, function.__name__

    @lazy
    def signature(self) -> tuple[TupleOf, Any]:
        """Kinds of the parameters; and the type of what is returned, or None."""
        hints = get_type_hints(self.py_func, include_extras=True)
        returned = hints.pop("return")
        parameters = TupleOf(tuple, tuple(map(kind_of, hints.values())))
        return parameters, None if returned is type(None) else _SCALARS[returned]

    @lazy
    def _code(self) -> Any:
        return load_library().function(self.name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        run = self.bind(*args, **kwargs)
        if run():
            raise self.stopped()
        returned = self.signature[1]
        return None if returned is None else bool(run.block[0]) if returned is np.bool_ else run.block[0]  # type: ignore[return-value]

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The call with these arguments, which it keeps alive; what is in arrays may change from call to call.

        Returns: a function without arguments, for one thread at a time, that returns 0, or something else where the
        kernel was `stopped`; what the kernel returned is the first word of its `block`, before the arguments.
        """
        words, (parameters, returned) = [0], self.signature
        lay_out(args, parameters, words, self.name)
        word: Any = ctypes.c_uint64 if returned is np.uint64 else ctypes.c_int64
        block = (word * len(words))(*words)
        run: Any = functools.partial(self._code, ctypes.addressof(block))
        run.block, run.kept = block, args
        return run

    def stopped(self) -> IndexError:
        """What a call that does not return 0 means."""
        return IndexError(f"{self.name}: an index is out of its array's bounds (a library built with --bounds)")


def lay_out(value: Any, kind: Kind, words: list[int], where: str) -> None:
    """Append an argument to `words`. where: for errors, the kernel."""
    if isinstance(kind, TupleOf):
        for part, of in zip(value, kind.parts, strict=True):
            lay_out(part, of, words, where)
    elif isinstance(kind, ArrayOf):
        found = type(value).__name__
        if isinstance(value, np.ndarray):
            if value.dtype == kind.dtype and value.ndim == kind.dimensions and value.flags.num & _PLAIN == _PLAIN:
                words += value.__array_interface__["data"][0], *value.shape
                return
            found = f"one of {value.dtype}, shape {value.shape}, strides {value.strides}"
        expected = f"a contiguous array of {kind.dtype} with {kind.dimensions} dimensions"
        raise TypeError(f"{where}: found {found}, expected {expected}")
    elif (number := index(value)) in (_UINT64 if kind.type is np.uint64 else _INT64):
        words.append(number)
    else:
        raise OverflowError(f"{where}: found {number}, expected a number that {kind.type.__name__} can hold")


def kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """A function to be compiled; see Kernel."""
    return Kernel(inner(function))
