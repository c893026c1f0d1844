"""The section `mixing` of a configuration: which controller, by name."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from conceptloader.base.strict import unknown
from conceptloader.errors import ConfigError
from conceptloader.mixing.controller import Controller, Weights
from conceptloader.mixing.doremi import DoReMi
from conceptloader.mixing.odm import ODM

LEARNING: dict[str, type[Controller]] = {"odm": ODM, "doremi": DoReMi}
PATHS = ("file",)
"""Kinds that name a file of weights."""


def check_section(section: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise ConfigError unless `section` is one known kind with its options. Imports nothing of the user's."""
    if len(section) != 1:
        raise ConfigError("mixing", ", ".join(section) or "nothing", "one controller, as `mixing: {odm: {}}`")
    ((kind, options),) = section.items()
    if kind in PATHS:
        if not isinstance(options, str) or not options:
            raise ConfigError(f"mixing.{kind}", repr(options), "a path")
    elif not isinstance(options, Mapping):
        raise ConfigError(f"mixing.{kind}", repr(options), "a mapping of options, {} for none")
    elif kind in LEARNING:
        try:
            LEARNING[kind].of(dict.fromkeys(names, 1.0), **options)
        except ConfigError as error:
            raise error.within("mixing", joint=".") from error
    elif ":" not in kind:
        raise unknown(f"mixing.{kind}", kind, (*LEARNING, *PATHS, "module:Class"), "controller")


def learning(kind: str, options: Mapping[str, Any], weights: Weights, state: Mapping[str, Any] | None) -> Controller:
    """The controller of a kind that learns.

    Raises:
        ConfigError: For a class that cannot be imported, or is no controller.
        ResumeError: For a state of other datasets.
    """
    found: Any = LEARNING.get(kind)
    if found is None:
        module, _, name = kind.partition(":")
        try:
            found = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"mixing.{kind}", str(error), "module:Class, which can be imported") from error
    lacks = [name for name in ("of", "observe", "state") if not callable(getattr(found, name, None))]
    if lacks:
        raise ConfigError(
            f"mixing.{kind}",
            f"no {', '.join(lacks)}",
            "of, observe and state, as conceptloader.mixing.controller has them",
        )
    controller: Controller = found.of(weights, state, **options)
    return controller
