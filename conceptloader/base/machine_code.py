"""The name of compiled code in the cache: a hash of all that it depends on."""

import functools
import hashlib
import inspect
import sys
import types
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba
import numpy as np

# What of numba's configuration decides about machine code.
_DECISIVE = (
    *("BOUNDSCHECK", "CPU_FEATURES", "CPU_NAME", "DEBUGINFO_DEFAULT"),
    *("ENABLE_AVX", "LOOP_VECTORIZE", "OPT", "SLP_VECTORIZE"),
)


def file_name(function: Any, signature: str, *files: str) -> str:
    """Of the machine code of a function for a signature. files: that say how it is compiled."""
    digest = hashlib.blake2b(digest_size=16)
    versions = numba.__version__, llvmlite.__version__, np.__version__, sys.implementation.cache_tag
    settings = [getattr(numba.config, name, None) for name in _DECISIVE]
    digest.update(repr((signature, inspect.getfile(function), _processor(), versions, settings)).encode())
    for file in (*files, __file__):
        digest.update(Path(file).read_bytes())
    _add(digest, function, set())
    return f"{function.__name__}-{digest.hexdigest()}.kernel"


def text_of(kind: Any) -> str:
    """A type, or a signature, as text; numba's own leaves the fields of named tuples out."""
    fields = getattr(getattr(kind, "instance_class", None), "_fields", ())
    parts = kind if isinstance(kind, (tuple, list)) else getattr(kind, "types", ())
    return f"{kind} {fields} {[text_of(part) for part in parts]}"


@functools.cache
def _processor() -> tuple[str, str]:
    return llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten()


def _add(digest: Any, value: Any, seen: set[Any]) -> None:
    """What machine code depends on of a function, or of anything else that a function refers to: of what is ours the
    whole file, and whatever the function's names stand for."""
    value = inspect.unwrap(value)
    if isinstance(value, (bool, int, float, str, bytes, tuple, np.generic, np.dtype)):
        digest.update(repr(value).encode())
    elif isinstance(value, types.FunctionType) and value not in seen and not value.__module__.startswith("numba."):
        seen.add(value)
        file = value.__code__.co_filename
        if file not in seen:
            seen.add(file)
            digest.update(Path(file).read_bytes())
        for name in sorted(_names(value.__code__) & value.__globals__.keys()):
            digest.update(name.encode())
            _add(digest, value.__globals__[name], seen)
    elif isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] == "conceptloader":
        digest.update(Path(str(value.__file__)).read_bytes())
    else:
        fields = getattr(value, "_fields", ())  # of a named tuple that is made
        digest.update(f"{getattr(value, '__name__', type(value).__name__)} {fields}".encode())


def _names(code: types.CodeType) -> set[str]:
    inside = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inside)
