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


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Replace attribute `name` (dotted: of a class) of `module`.

    by: called in its place, with the original before the arguments. parameters: names that the original must take,
        separated by spaces.
    caller: the function of `module` (dotted: of a class) in which `line` must stand; "" where that is a script, which
        may be anyone's: then `line` is for the reader.
    """

    module: str
    name: str
    by: Callable[..., Any]
    parameters: str = ""
    caller: str = ""
    line: str

    def resolve(self) -> tuple[Any, Any]:
        """(the object whose attribute is replaced, the original). ImportError or AttributeError if there is none."""
        path, _, last = self.name.rpartition(".")
        owner = _found(self.module, path)
        return owner, getattr(owner, last)

    def refusal(self, original: Any) -> str:
        """Why `original` is not what this patch was written for; "" if it is."""
        if self.parameters:
            found = inspect.signature(original).parameters
            absent = [name for name in self.parameters.split() if name not in found]
            if absent:
                return f"it takes {', '.join(found)}, expected {', '.join(absent)} too"
        if self.caller and self.line not in self._source():
            return f"`{self.line}` was not found in {self.caller}"
        return ""

    def _source(self) -> str:
        try:
            return " ".join(inspect.getsource(_found(self.module, self.caller)).split())
        except (AttributeError, OSError, TypeError):  # it isn't there, or no Python
            return ""


def _found(module: str, name: str) -> Any:
    """What a dotted name stands for in a module; the module itself for ""."""
    return functools.reduce(getattr, filter(None, name.split(".")), import_module(module))


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
            replacement = _instead(patch.by, original)
            if inspect.isroutine(original):
                replacement = functools.wraps(original)(replacement)
            setattr(replacement, _MARK, original)
            bound = isinstance(owner, type) and inspect.ismethod(original)
            setattr(owner, patch.name.split(".")[-1], staticmethod(replacement) if bound else replacement)


def _instead(by: Callable[..., Any], original: Any) -> Any:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return by(original, *args, **kwargs)

    return replacement
