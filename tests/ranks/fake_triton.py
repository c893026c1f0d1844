"""Just enough of a `triton` module for `import triton` and `@triton.jit` at import time; nothing of it can run."""

import importlib
import importlib.machinery
import sys
import types

MODULES = (
    "triton",
    "triton.language",
    "triton.language.extra",
    "triton.language.math",
    "triton.runtime",
    "triton.language.extra.cuda",
    "triton.language.extra.libdevice",
)


class Anything:
    """Callable, indexable, combinable with |: stands for any name of triton in a decorator or an annotation."""

    def __init__(self, *args, **kwargs): ...

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, key):
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__


class FakeModule(types.ModuleType):
    __version__ = "3.0.0"
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


def install():
    """Put the fake modules in place unless triton is installed."""
    if importlib.util.find_spec("triton") is not None:
        return
    import torch.utils._triton as probes

    for name in dir(probes):
        if name.startswith("has_triton"):
            setattr(probes, name, lambda *args, **kwargs: False)
    for name in ("torch._inductor.runtime.hints", "torch._inductor.runtime.triton_compat"):
        importlib.import_module(name)  # they look for triton once: now, while there is none
    for name in MODULES:
        module = FakeModule(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    triton = sys.modules["triton"]
    triton.jit = lambda function=None, **options: function if function is not None else (lambda f: f)
    triton.autotune = triton.heuristics = lambda *args, **kwargs: lambda f: f
    triton.cdiv = lambda a, b: -(-a // b)
    triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
    triton.language.constexpr = Anything
