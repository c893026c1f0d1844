"""Kernels to an object file, by numba, which is imported here alone; and what kernels need that it has no name for.

Part of the build; numba's private names are why pyproject.toml pins its version.
"""

import itertools
import types as python
from collections.abc import Sequence
from typing import Any, ClassVar

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types as _types
from numba.core import cgutils as _cgutils
from numba.core import codegen as _numba_codegen
from numba.core.registry import cpu_target as _cpu_target
from numba.extending import intrinsic as _intrinsic
from numba.np import arrayobj as _arrayobj
from numba.np.numpy_support import from_dtype as _from_dtype

from conceptloader.kernels.kernel import ArrayOf, Kernel, Kind, Lowered, TupleOf

types: Any = _types
arrayobj: Any = _arrayobj
from_dtype: Any = _from_dtype
cgutils: Any = _cgutils
intrinsic: Any = _intrinsic
_codegen: Any = _numba_codegen
# No way in from Python, and no counting of references: nothing that is compiled owns an array.
_OPTIONS: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False, "error_model": "numpy"}

# External functions stay cacheable; a ctypes pointer would be a number of this process.
_external: Any = types.ExternalFunction
pread = _external("pread", types.int64(types.int32, types.uintp, types.uintp, types.int64))
fadvise = _external("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
errno_location = _external("__errno_location", types.int64())
_LOCAL = ("internal", "private")
_OUTSIDE = {"pread", "posix_fadvise", "__errno_location", "memcpy", "memset", "memmove"}


def compile_kernels(kernels: Sequence[Kernel[..., Any]], targets: Sequence[tuple[str, str, str]]) -> list[bytes]:
    """For each triple, processor and its features, as LLVM names them, an object file with a function for each kernel.

    A kernel is `i64 NAME(i64 address)`, of the address of a block of words.

    The first word takes what the kernel returns, the others are its arguments one after another, as `lay_out` of
    kernel.py has put them there. Returned is 0, or what numba's functions return instead where an index is out of
    bounds.
    """
    exports = "".join(_EXPORT.format(name=kernel.name, entry=_compile(kernel)) for kernel in kernels)
    whole: Any = llvm.parse_assembly("")
    for module in _Module.made:
        whole.link_in(module, preserve=True)  # for kernels of another call, too
    whole.link_in(llvm.parse_assembly(exports))
    names = {kernel.name for kernel in kernels}
    for value in (*whole.functions, *whole.global_variables):
        if not value.is_declaration and value.name not in names and value.linkage.name not in _LOCAL:
            value.linkage = "internal"
    code: bytes = whole.as_bitcode()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return [_emit(code, *target) for target in targets]


def _emit(code: bytes, triple: str, cpu: str, features: str) -> bytes:
    """An object file for a processor, after passes that know its vectors and see all kernels at once."""
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default")
    whole: Any = llvm.parse_bitcode(code)
    whole.triple = triple
    whole.data_layout = str(machine.target_data)
    single = _passes(machine, 3)
    for function in whole.functions:
        if not function.is_declaration:
            single.getFunctionPassManager().run(function, single)
    early = _passes(machine, 0)
    manager = early.getModulePassManager()
    manager.add_loop_rotate_pass()  # as numba has it: loops in this form are vectorized more often
    manager.add_instruction_combine_pass()
    manager.add_jump_threading_pass()
    manager.run(whole, early)
    for _ in range(2):  # the second one finds what the first one's inlining left
        full = _passes(machine, 3)
        full.getModulePassManager().run(whole, full)
    missing = {f.name for f in whole.functions if f.is_declaration and not f.name.startswith("llvm.")} - _OUTSIDE
    if missing:
        raise RuntimeError(f"kernels need {', '.join(sorted(missing))}, which is nowhere at run time")
    found: bytes = machine.emit_object(whole)
    return found


def _passes(machine: Any, level: int) -> Any:
    options = llvm.create_pipeline_tuning_options()
    options.speed_level = level
    options.loop_vectorization, options.slp_vectorization = level > 0, False
    return llvm.create_pass_builder(machine, options)


class _Module(_codegen.CPUCodeLibrary):  # type: ignore[misc]
    """What numba makes of a function, collected.

    By itself it optimizes each one together with all that it calls, and makes machine code of it for this process,
    which nothing runs: half of the time of a build.
    """

    made: ClassVar[list[Any]] = []

    def add_llvm_module(self, module: Any) -> None:
        self._final_module.link_in(module)

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalized = True
        self.made.append(self._final_module)

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0  # there is none


_context: Any = _cpu_target.target_context.codegen()
_context._library_class = _Module
_context.set_env = lambda name, environment: None  # a global of machine code of this process


# Numba's functions take where to put what they return, and an exception, before their arguments.
_EXPORT = """
declare i32 @{entry}(ptr, ptr, i64)
define i64 @{name}(i64 %address) {{
  %returned = alloca i64
  %exception = alloca ptr
  %status = call i32 @{entry}(ptr %returned, ptr %exception, i64 %address)
  %wide = sext i32 %status to i64
  ret i64 %wide
}}
"""


def _compile(kernel: Kernel[..., Any]) -> str:
    """LLVM's name of a kernel as a function of the address of a block."""
    parameters, returned = kernel.signature
    body, arguments = _dispatcher(kernel.py_func), _unpack(_type_of(parameters))

    def entry(block: Any) -> Any:
        keep(block, body(*arguments(block)))
        return np.int64(0)

    dispatcher: Any = numba.njit(**_OPTIONS)(entry)
    dispatcher.compile((types.int64,))
    [made] = dispatcher.overloads.values()
    [found] = body.overloads.values()
    if found.signature.return_type != (types.none if returned is None else from_dtype(np.dtype(returned))):
        raise TypeError(f"{kernel.name}: returns {found.signature.return_type}, its annotation says {returned}")
    found_name: str = made.fndesc.llvm_func_name
    return found_name


def _type_of(kind: Kind) -> Any:
    """Numba's type of arguments of a kind."""
    if isinstance(kind, ArrayOf):
        return types.Array(from_dtype(kind.dtype), kind.dimensions, "C")
    if isinstance(kind, TupleOf):
        return types.BaseTuple.from_types([_type_of(part) for part in kind.parts], kind.made)
    return from_dtype(np.dtype(kind.type))


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
    return value


# ---- what LLVM is told directly


def _unpack(kind: Any) -> Any:
    """A function of the address of a block: the tuple whose parts are in its words, from the second one on."""

    def typed(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            numbers = itertools.count(1)

            def word(number: int) -> Any:
                words = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
                return builder.load(builder.gep(words, [context.get_constant(types.intp, number)]))

            def take(part: Any) -> Any:
                if isinstance(part, types.BaseTuple):
                    return context.make_tuple(builder, part, [take(inside) for inside in part.types])
                value = word(next(numbers))
                if not isinstance(part, types.Array):
                    return context.cast(builder, value, types.int64, part)
                item = context.get_data_type(part.dtype)
                size = context.get_constant(types.intp, context.get_abi_sizeof(item))
                shape = [word(next(numbers)) for _ in range(part.ndim)]
                strides = [size]
                for length in reversed(shape[1:]):
                    strides.insert(0, builder.mul(strides[0], length))
                data = builder.inttoptr(value, item.as_pointer())
                array = arrayobj.make_array(part)(context, builder)
                arrayobj.populate_array(array, data, shape, strides, size, None)
                return array._getvalue()

            return take(kind)

        return kind(types.int64), generate

    return intrinsic(typed)


@intrinsic  # type: ignore[untyped-decorator]
def keep(typing_context: Any, address: Any, value: Any) -> Any:
    """Store an integer as a word at an address; nothing if it is None."""

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


def _item_of(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Where item [row, column] of an array is, which come first of the arguments; checked where all indices are."""
    array = arrayobj.make_array(signature.args[0])(context, builder, args[0])
    return cgutils.get_item_pointer(
        context, builder, signature.args[0], array, args[1:3], boundscheck=context.enable_boundscheck
    )


@intrinsic  # type: ignore[untyped-decorator]
def load_acquire(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = context.get_abi_sizeof(context.get_data_type(array.dtype))
        return builder.load_atomic(_item_of(context, builder, signature, args), "acquire", size)

    return array.dtype(array, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_release(typing_context: Any, array: Any, row: Any, column: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = context.get_abi_sizeof(context.get_data_type(array.dtype))
        word = context.cast(builder, args[3], value, array.dtype)
        builder.store_atomic(word, _item_of(context, builder, signature, args), "release", size)
        return context.get_dummy_value()

    return types.none(array, types.int64, types.int64, value), generate


@intrinsic  # type: ignore[untyped-decorator]
def mulhi(typing_context: Any, x: Any, y: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate
