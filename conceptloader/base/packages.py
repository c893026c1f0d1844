"""What is imported only when it is used: packages that only some uses need, and the public names of an adapter."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any

from conceptloader.base.tested import warn_untested
from conceptloader.errors import ConfigError, MissingPackageError


def need(module: str, problem: str) -> Any:
    """The module. Raises: ConfigError that begins with `problem` and names the package to be installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError("", problem, fix=f"pip install {module.partition('.')[0]}", code="package") from error


def from_above(module: str) -> Any:
    """A module above the caller's layer, which knows it by its name alone: a hook, see design/architecture.md."""
    return import_module(module)


@contextmanager
def imported(what: str, remedy: str, package: str) -> Iterator[None]:
    """For the imports in the block, of a package that base/tested.py knows; a newer version is one warning.

    Raises: MissingPackageError that begins with `what`, and says what to do.
    """
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(what, f"cannot be imported ({error})", fix=remedy) from error
    warn_untested(package)


def public(
    package: str, modules: Mapping[str, str], known: Callable[[], AbstractContextManager[None]] = nullcontext
) -> tuple[list[str], Callable[[str], Any]]:
    """__all__ and __getattr__ of a package.

    modules: public names, separated by spaces, by the module that has them. known: what the imports happen in, such as
    Upstream.known.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in homes:
            raise unknown_name(package, name)
        with known():
            return getattr(import_module(f"{package}.{homes[name]}"), name)

    return sorted(homes), find


def unknown_name(package: str, name: str) -> AttributeError:
    """The error for a name that a package lacks."""
    return AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
