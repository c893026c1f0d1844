"""Options as fields of a dataclass: the command line, a recipe and Python have the same ones."""

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any, TypeVar

from conceptloader.base.arguments import add_pairs, by_key, chosen
from conceptloader.base.strict import unknown

T = TypeVar("T")


def option(
    meaning: str, default: Any = None, form: str = "", read: Any = None, choices: Any = None, group: str = ""
) -> Any:
    """A field of a dataclass of options, from which its flag, its key of a recipe and its name in Python are made.

    default: `dict` or `list` for what may be given several times. form: of the value, as help shows it. read: what
    makes a value of a word. group: its heading in the help.
    """
    facts: Any = {"metadata": {"help": meaning, "form": form or None, "read": read, "choices": choices, "group": group}}
    return field(default_factory=default, **facts) if default in (dict, list) else field(default=default, **facts)


def options_from(options: type[T], command: str, given: Mapping[str, Any]) -> T:
    """The options that are given by name. Raises: ConfigError for a name that is none."""
    known = [one.name for one in fields(options)]  # type: ignore[arg-type]
    for name in given.keys() - known:
        raise unknown(f"{command}: {name}", name, known, "option")
    return options(**given)


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """Add a flag for each `option` of a dataclass."""
    groups: dict[str, Any] = {"": parser}
    for one in fields(options):
        if "help" not in one.metadata:
            continue
        meaning, form, read, choices, title = one.metadata.values()
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        add, flag = groups[title].add_argument, "--" + one.name.replace("_", "-")
        if one.default_factory is dict and read is None:
            add_pairs(add, flag, form, meaning)
        elif one.default is MISSING:
            add(flag, action="append", default=[], type=read or str, metavar=form, help=meaning)
        elif one.default is False:
            add(flag, action="store_true", help=meaning)
        else:
            add(flag, default=one.default, type=read or str, choices=choices, metavar=form, help=meaning)


def options_of(arguments: argparse.Namespace, options: type) -> dict[str, Any]:
    """The values of the flags that `add_options` added, by the names of the fields."""
    found = chosen(arguments, *(one.name for one in fields(options) if "help" in one.metadata))
    kinds = {one.name: one.default_factory for one in fields(options)}
    return {name: by_key(name, value) if kinds[name] is dict else value for name, value in found.items()}
