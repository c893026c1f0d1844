"""Changing another package in this process, for scripts that must stay as they are.

Each patch says what the original takes and which upstream line it stands for. Both are looked for before anything is
changed, so that a release in which they have moved on is refused instead of trained with other data.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from conceptloader.errors import ConfigError

_MARK = "conceptloader_original"


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Replace `target`, "module:name" (dotted: of a class).

    by: called in its place, with the original before the arguments. parameters: names that the original must take,
        separated by spaces.
    caller: the function of that module in which `line` must stand; "" where that is a script, which may be anyone's:
        then `line` is for the reader.
    """

    target: str
    by: Callable[..., Any]
    parameters: str = ""
    caller: str = ""
    line: str

    @property
    def attribute(self) -> str:
        return re.split("[.:]", self.target)[-1]

    def resolve(self) -> tuple[Any, Any]:
        """(the object whose attribute is replaced, the original). ImportError or AttributeError if there is none."""
        module, name = self.target.split(":")
        owner = resolve_name(f"{module}:{name.rpartition('.')[0]}")
        return owner, getattr(owner, self.attribute)

    def refusal(self, original: Any) -> str:
        """Why `original` is not what this patch was written for; "" if it is."""
        if self.parameters:
            found = inspect.signature(original).parameters
            absent = [name for name in self.parameters.split() if name not in found]
            if absent:
                return f"it takes {', '.join(found)}, expected {', '.join(absent)} too"
        if self.caller and self.line not in _source(f"{self.target.partition(':')[0]}:{self.caller}"):
            return f"`{self.line}` was not found in {self.caller}"
        return ""


def _source(name: str) -> str:
    try:
        return " ".join(inspect.getsource(resolve_name(name)).split())
    except (AttributeError, OSError, TypeError):  # it isn't there, or no Python
        return ""


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """name: of the package. seen: releases for which the patches were written. otherwise: what to do with another."""

    name: str
    seen: str
    otherwise: str

    @contextmanager
    def known(self) -> Iterator[None]:
        """For code of an adapter that uses the package; a decorator, too.

        Raises ConfigError that names the releases for an AttributeError or ImportError of a line of an adapter, which
        looks for what this release does not have. Those of other code pass through.
        """
        try:
            yield
        except (AttributeError, ImportError) as error:
            line = error.__traceback__
            while line is not None and line.tb_next is not None:
                line = line.tb_next
            if line is None or ".integrations." not in line.tb_frame.f_globals.get("__name__", ""):
                raise
            raise ConfigError(self.name, f"{error} (conceptloader knows {self.seen})", fix=self.otherwise) from error

    def original(self, patch: Patch) -> tuple[Any, Any]:
        """Patch.resolve, checked. Raises ConfigError if this release is not what the patch was written for.

        An error about a package that the patched one imports, and that is not there, passes through.
        """
        try:
            owner, original = patch.resolve()
            reason = "" if hasattr(original, _MARK) else patch.refusal(original)
        except (ImportError, AttributeError) as error:
            package = re.split("[.:]", patch.target)[0]
            if isinstance(error, ModuleNotFoundError) and str(error.name).split(".")[0] != package:
                raise
            reason = str(error)
        if reason:
            raise ConfigError(
                f"cannot hook into {self.name} at {patch.target.replace(':', '.')}",
                f"{reason} (conceptloader knows {self.seen})",
                fix=self.otherwise,
            )
        return owner, original

    def apply(self, patches: Iterable[Patch]) -> None:
        """All of the patches, each once per process, or, with a ConfigError, none."""
        for patch, (owner, original) in [(patch, self.original(patch)) for patch in patches]:
            if hasattr(original, _MARK):
                continue
            replacement = _instead(self.known()(patch.by), original)
            if inspect.isroutine(original):
                replacement = functools.wraps(original)(replacement)
            setattr(replacement, _MARK, original)
            bound = isinstance(owner, type) and inspect.ismethod(original)
            setattr(owner, patch.attribute, staticmethod(replacement) if bound else replacement)


def _instead(by: Callable[..., Any], original: Any) -> Any:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return by(original, *args, **kwargs)

    return replacement
