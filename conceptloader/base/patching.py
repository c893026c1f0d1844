"""Changing another package in this process, for scripts that must stay as they are.

Each patch says what the original takes and which upstream line it stands for. Both are looked for before anything is
changed, so that a release in which they have moved on is refused instead of trained with other data.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from conceptloader.errors import ConfigError

_MARK = "conceptloader_original"


def around(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """For Patch.make: the replacement calls function(original, ...) with its own arguments behind."""

    def make(original: Any) -> Any:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        return replacement

    return make


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Replace attribute `name` (dotted: of a class) of `module`.

    make: from the original to its replacement. parameters: what the original must take.
    caller: the function of `module` (dotted: of a class) in which `line` must stand; "" where that is a script, which
        may be anyone's: then `line` is for the reader.
    """

    module: str
    name: str
    make: Callable[[Any], Any]
    parameters: tuple[str, ...] = ()
    caller: str = ""
    line: str

    def resolve(self) -> tuple[Any, Any]:
        """(the object whose attribute is replaced, the original). ImportError or AttributeError if there is none."""
        owner: Any = import_module(self.module)
        *path, last = self.name.split(".")
        for part in path:
            owner = getattr(owner, part)
        return owner, getattr(owner, last)

    def refusal(self, original: Any) -> str:
        """Why `original` is not what this patch was written for; "" if it is."""
        if self.parameters:
            found = inspect.signature(original).parameters
            absent = [name for name in self.parameters if name not in found]
            if absent:
                return f"it takes {', '.join(found)}, expected {', '.join(absent)} too"
        if self.caller and self.line not in _source(self.module, self.caller):
            return f"`{self.line}` was not found in {self.caller}"
        return ""


def _source(module: str, name: str) -> str:
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    try:
        return " ".join(inspect.getsource(found).split())
    except (OSError, TypeError):  # it isn't there, or no Python
        return ""


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """name: of the package. seen: releases for which the patches were written. otherwise: what to do with another."""

    name: str
    seen: str
    otherwise: str

    def original(self, patch: Patch) -> tuple[Any, Any]:
        """Patch.resolve, checked. Raises ConfigError if this release is not what the patch was written for."""
        try:
            owner, original = patch.resolve()
            reason = "" if hasattr(original, _MARK) else patch.refusal(original)
        except (ImportError, AttributeError) as error:
            reason = str(error)
        if reason:
            raise ConfigError(
                f"cannot hook into {self.name} at {patch.module}.{patch.name}: {reason} (conceptloader knows "
                f"{self.seen}); {self.otherwise}"
            )
        return owner, original

    def apply(self, patches: Iterable[Patch]) -> None:
        """All of the patches, each once per process, or, with a ConfigError, none."""
        for patch, (owner, original) in [(patch, self.original(patch)) for patch in patches]:
            if hasattr(original, _MARK):
                continue
            replacement = patch.make(original)
            if inspect.isroutine(original):
                replacement = functools.wraps(original)(replacement)
            setattr(replacement, _MARK, original)
            bound = isinstance(owner, type) and inspect.ismethod(original)
            setattr(owner, patch.name.split(".")[-1], staticmethod(replacement) if bound else replacement)
