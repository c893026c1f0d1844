"""The name of compiled code in the cache: a hash of all that it depends on."""

import contextlib
import functools
import hashlib
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

# What of numba's configuration decides about machine code.
_DECISIVE = (
    *("BOUNDSCHECK", "CPU_FEATURES", "CPU_NAME", "DEBUGINFO"),
    *("ENABLE_AVX", "LOOP_VECTORIZE", "OPT", "SLP_VECTORIZE"),
)


def file_name(function: Any, kinds: tuple[Any, ...]) -> str:
    """Of the machine code of a kernel for arguments of some kinds. Raises: OSError if a source is not there."""
    digest = hashlib.blake2b(digest_size=16)
    settings: list[Any] = [os.environ.get(f"NUMBA_{name}") for name in _DECISIVE]
    with contextlib.suppress(OSError):  # numba reads it, too, where there is one
        settings.append(Path(".numba_config.yaml").read_bytes())
    digest.update(repr((_text(kinds), inspect.getfile(function), _platform(), settings)).encode())
    _add(digest, function, set())
    return f"{function.__name__}-{digest.hexdigest()}.kernel"


def _text(kind: Any) -> str:
    if isinstance(kind, tuple):
        return f"({', '.join(map(_text, kind))})"
    return f"{kind.__name__}{getattr(kind, '_fields', '')}" if isinstance(kind, type) else repr(kind)


@functools.cache
def _platform() -> tuple[Any, ...]:
    """The processor, what compiles for it, and how."""
    import llvmlite
    import llvmlite.binding as llvm

    numba = importlib.util.find_spec("numba")  # not imported: that would take longer than all else
    version = Path(str(numba and numba.origin)).with_name("_version.py").read_bytes()
    ours = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    parts = hashlib.blake2b(b"".join([version, *ours])).hexdigest()
    processor = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    versions = llvmlite.__version__, np.__version__, sys.implementation.cache_tag, object.__basicsize__
    return processor, versions, parts


def _add(digest: Any, value: Any, seen: set[Any], names: Set[str] = frozenset()) -> None:
    """What machine code depends on of a function, or of anything else that a function refers to: of what is ours the
    whole file, and whatever the function's names stand for. names: of attributes, if it is a module."""
    value = getattr(value, "py_func", value)  # of a kernel
    if isinstance(value, (np.generic, np.ndarray)):  # as text they depend on numpy's print options
        value = value.dtype, value.tolist()
    if isinstance(value, (bool, int, float, str, bytes, list, tuple, np.dtype)):
        digest.update(repr(value).encode())
    elif isinstance(value, types.FunctionType) and value not in seen:
        seen.add(value)
        file = value.__code__.co_filename
        if file not in seen:
            seen.add(file)
            digest.update(Path(file).read_bytes())
        names = _names(value.__code__)
        _add_named(digest, value.__globals__, seen, names)
    elif isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] == "conceptloader":
        if (value, names) not in seen:
            seen.add((value, names))
            _add_named(digest, vars(value), seen, names)
    else:
        fields = getattr(value, "_fields", ())  # of a named tuple that is made
        digest.update(f"{getattr(value, '__name__', type(value).__name__)} {fields}".encode())


def _add_named(digest: Any, found: Mapping[str, Any], seen: set[Any], names: Set[str]) -> None:
    for name in sorted(names & found.keys()):
        digest.update(name.encode())
        _add(digest, found[name], seen, names)


def _names(code: types.CodeType) -> frozenset[str]:
    inside = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*inside)
