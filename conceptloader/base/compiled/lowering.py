"""Kernels to object files, by numba, which is imported here alone; and what kernels need that it has no name for."""

import itertools
import types as python
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types as _types
from numba.core import codegen as _codegen
from numba.extending import intrinsic as _intrinsic
from numba.np import arrayobj as _arrayobj
from numba.np.numpy_support import from_dtype as _from_dtype

from conceptloader.base.compiled.code import ALIGNED, CONTIGUOUS, WRITABLE, Lowered, Made

types: Any = _types
codegen: Any = _codegen
arrayobj: Any = _arrayobj
from_dtype: Any = _from_dtype
config: Any = numba.config
intrinsic: Any = _intrinsic
# No way in from Python, and no counting of references: nothing that is compiled owns an array.
_OPTIONS: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False, "error_model": "numpy"}

# External functions stay cacheable; a ctypes pointer would be a number of this process.
_external: Any = types.ExternalFunction
pread = _external("pread", types.int64(types.int32, types.uintp, types.uintp, types.int64))
fadvise = _external("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
errno_location = _external("__errno_location", types.int64())
# Where an array as an object has them, in words; as extensions that are compiled against numpy rely on.
_HEAD = object.__basicsize__ // 8
_DATA, _SHAPE, _STRIDES = _HEAD, _HEAD + 2, _HEAD + 3
# printf: what is out of bounds, with NUMBA_FULL_TRACEBACKS.
_OUTSIDE = {"pread", "posix_fadvise", "__errno_location", "memcpy", "memset", "memmove", "printf"}


def compile_kernel(function: Callable[..., Any], kinds: tuple[Any, ...]) -> Made:
    """Machine code of a kernel for arguments of some kinds.

    What is compiled is a function of one number, the address of a block of words: the first takes what the kernel
    returns, the others are its arguments one after another, as `lay_out` of kernel.py has put them there.
    """
    if config.DISABLE_JIT:
        raise RuntimeError("found NUMBA_DISABLE_JIT in the environment; unset it")
    given = tuple(map(_type_of, kinds))
    body, arguments = _dispatcher(function), _unpack(types.Tuple(given))

    def entry(block: Any) -> Any:
        keep(block, body(*arguments(block)))
        return np.int64(0)

    dispatcher: Any = numba.njit(**_OPTIONS)(entry)
    dispatcher.compile((types.int64,))
    [made] = dispatcher.overloads.values()
    module = llvm.parse_assembly(made.library.get_llvm_str())
    missing = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")} - _OUTSIDE
    if missing:
        raise RuntimeError(f"{function.__name__}: needs {', '.join(sorted(missing))}, which is nowhere at run time")
    cpu = config.CPU_NAME or llvm.get_host_cpu_name()
    features = codegen.get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3, jit=True)
    returned = body.overloads[given].signature.return_type
    result = "bool" if returned == types.boolean else "uint64" if returned == types.uint64 else "int64"
    result = "none" if returned == types.none else result
    return Made(made.fndesc.llvm_func_name, result, machine.emit_object(module))


def _type_of(kind: Any) -> Any:
    """Numba's type of arguments of a kind; see kernel.py."""
    if isinstance(kind, tuple) and kind[0] is np.ndarray:
        _, dtype, dimensions, flags = kind
        layout, readonly = "C" if flags & CONTIGUOUS else "A", not flags & WRITABLE
        return types.Array(from_dtype(dtype), dimensions, layout, readonly=readonly, aligned=bool(flags & ALIGNED))
    if isinstance(kind, tuple):
        return types.BaseTuple.from_types([_type_of(part) for part in kind[1]], kind[0])
    return types.int64 if kind is int else types.boolean if kind is bool else from_dtype(np.dtype(kind))


_dispatchers: dict[Any, Any] = {}
_namespaces: dict[int, tuple[Any, dict[str, Any]]] = {}


def _dispatcher(function: Any) -> Any:
    """Numba's twin of a function, which calls the twins of others."""
    if function not in _dispatchers:
        names = _namespace(function.__globals__)
        twin = python.FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        twin.__module__ = function.__module__
        inlined = getattr(function, "inline", "never") == "always"
        options = {"error_model": "numpy", "inline": "always"} if inlined else _OPTIONS
        _dispatchers[function] = numba.njit(**options)(twin)
    return _dispatchers[function]


def _namespace(names: dict[str, Any]) -> dict[str, Any]:
    """Those of a module, where what is compiled stands for what is marked to be."""
    if id(names) not in _namespaces:
        found = dict(names)
        _namespaces[id(names)] = names, found  # before the rest: modules refer to each other
        found.update({name: _twin(value) for name, value in names.items()})
    return _namespaces[id(names)][1]


def _twin(value: Any) -> Any:
    value = getattr(value, "py_func", value)  # of a kernel
    if isinstance(value, Lowered):
        return globals()[value.__name__]
    if isinstance(value, python.FunctionType) and hasattr(value, "inline"):
        return _dispatcher(value)
    if isinstance(value, python.ModuleType) and value.__name__.startswith("conceptloader."):
        module = python.ModuleType(value.__name__)
        module.__dict__.update(_namespace(vars(value)))
        return module
    return value


# ---- what LLVM is told directly


def _unpack(kind: Any) -> Any:
    """A function of the address of a block: the tuple whose parts are in its words, from the second one on."""

    def typed(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            numbers = itertools.count(1)

            def word(address: Any, number: int) -> Any:
                words = builder.inttoptr(address, ir.IntType(64).as_pointer())
                return builder.load(builder.gep(words, [context.get_constant(types.intp, number)]))

            def take(part: Any) -> Any:
                if isinstance(part, types.BaseTuple):
                    return context.make_tuple(builder, part, [take(inside) for inside in part.types])
                value = word(args[0], next(numbers))
                if not isinstance(part, types.Array):
                    return context.cast(builder, value, types.int64, part)
                item = context.get_data_type(part.dtype)
                size = context.get_constant(types.intp, context.get_abi_sizeof(item))
                data = builder.inttoptr(word(value, _DATA), item.as_pointer())
                shape, strides = ([word(word(value, at), k) for k in range(part.ndim)] for at in (_SHAPE, _STRIDES))
                array = arrayobj.make_array(part)(context, builder)
                arrayobj.populate_array(array, data, shape, strides, size, None)
                return array._getvalue()

            return take(kind)

        return kind(types.int64), generate

    return intrinsic(typed)


@intrinsic  # type: ignore[untyped-decorator]
def keep(typing_context: Any, address: Any, value: Any) -> Any:
    """keep(address, value): an integer as a word; nothing if it is None."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if value != types.none:
            word = context.cast(builder, args[1], value, types.int64)
            builder.store(word, builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.none(types.int64, value), generate


@intrinsic  # type: ignore[untyped-decorator]
def array_at(typing_context: Any, address: Any, first: Any, count: Any, dtype: Any) -> Any:
    kind = types.Array(dtype.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
        begin = builder.add(args[0], builder.mul(args[1], size))
        absent = builder.icmp_signed("==", args[0], context.get_constant(types.intp, 0))
        shape = builder.select(absent, context.get_constant(types.intp, 0), args[2])
        array = arrayobj.make_array(kind)(context, builder)
        data = builder.inttoptr(begin, context.get_data_type(kind.dtype).as_pointer())
        arrayobj.populate_array(array, data, [shape], [size], size, None)
        return array._getvalue()

    return kind(types.int64, types.int64, types.int64, dtype), generate


@intrinsic  # type: ignore[untyped-decorator]
def load(typing_context: Any, address: Any, dtype: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], context.get_value_type(dtype.dtype).as_pointer())
        return builder.load(pointer, align=1)

    return dtype.dtype(types.int64, dtype), generate


@intrinsic  # type: ignore[untyped-decorator]
def mulhi(typing_context: Any, x: Any, y: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate
