"""What runs: the product's functions that are entered, in all threads, and the compiled ones that these call.

A tracer cannot see compiled code, which is found by following the functions that it refers to, from those kernels on
that the traced functions call.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from tests.house.imports import ROOT

Functions = dict[tuple[str, str], Any]  # (file, name) -> code, or what is compiled
PREFIXES = tuple(f"{ROOT / top}/" for top in ("conceptloader", "integrations"))


class Tracer:
    """The product's functions that are entered, in all threads, while it is on."""

    def __init__(self) -> None:
        self.found: Functions = {}

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PREFIXES) and not code.co_name.startswith("<"):
            self.found[code.co_filename, f"{code.co_name}:{code.co_firstlineno}"] = code

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Machine code tells of nothing: a kernel is noted when it is bound to its arguments."""
        from conceptloader.kernels.kernel import Kernel

        bind = Kernel.bind

        def told(kernel: Any, *arguments: Any) -> Any:
            code = kernel.py_func.__code__
            self.found[code.co_filename, f"{code.co_name}:{code.co_firstlineno}"] = code
            return bind(kernel, *arguments)

        Kernel.bind = told  # type: ignore[method-assign]
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            Kernel.bind = bind  # type: ignore[method-assign]


def compiled_below(traced: Functions) -> Functions:
    """The traced functions that are compiled, and those that they reach."""
    from conceptloader.kernels.kernel import Kernel

    entered = set(traced.values())
    modules = [module for name, module in sys.modules.copy().items() if name.split(".")[0] == "conceptloader"]
    waiting = [
        value for module in modules for value in vars(module).values()
        if isinstance(value, Kernel) and value.py_func.__code__ in entered
    ]  # fmt: skip
    found: Functions = {}
    while waiting:
        function = waiting.pop()
        function = getattr(function, "py_func", function)
        code = function.__code__
        key = (code.co_filename, f"{code.co_name}:{code.co_firstlineno}")
        if key not in found:
            found[key] = code
            values = [function.__globals__.get(name) for name in code.co_names]
            waiting += [value for value in values if isinstance(value, Kernel) or hasattr(value, "inline")]
    return found
