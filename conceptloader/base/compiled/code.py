"""Machine code: what it is made of, and how it comes into memory."""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def inner(function: F) -> F:
    """A function that only kernels call: a part of their machine code."""
    function.inline = "never"  # type: ignore[attr-defined]
    return function


def inlined(function: F) -> F:
    """A piece of a kernel that is pasted into it before LLVM sees it: a loop with a call in it is never vectorized."""
    function.inline = "always"  # type: ignore[attr-defined]
    return function


class Lowered:
    """What only kernels can call: a name in lowering.py, which is not imported before something is compiled."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any) -> Any:
        raise TypeError(f"{self.__name__}: called outside of a kernel")


Kind = Any
"""A type as far as machine code depends on it: the class of a number; (class of a tuple, its kinds); (ndarray, dtype,
dimensions, those of numpy's flags that count)."""

CONTIGUOUS, ALIGNED, WRITABLE = 0x1, 0x100, 0x400  # as numpy's C API numbers them


class Made(NamedTuple):
    """An object file. symbol: of the function in it, whose only argument is the address of a block of words; result:
    what it leaves in the first of these, a key of RESULTS."""

    symbol: str
    result: str
    code: bytes


RESULTS: dict[str, tuple[Any, Any]] = {
    "int64": (ctypes.c_int64, None), "uint64": (ctypes.c_uint64, None), "bool": (ctypes.c_uint64, bool),
    "none": (ctypes.c_uint64, lambda _: None),
}  # fmt: skip
"""ctypes of the words of a block, and what makes something else of the first one, or None."""

_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)


class Code:
    """Machine code in memory. run: it, with numba's calling convention, which returns 0 unless an exception was raised;
    cached: whether it was on disk; word, result: see RESULTS."""

    def __init__(self, made: Made, cached: bool) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(made.code))
        self._engine.finalize_object()
        self.run = _RUN(self._engine.get_function_address(made.symbol))
        (self.word, self.result), self.cached = RESULTS[made.result], cached
