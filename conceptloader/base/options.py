"""Options as fields of a dataclass: the command line, a recipe and Python have the same ones."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Annotated, Any, TypeVar

from conceptloader.base.arguments import add_pairs, by_key, chosen
from conceptloader.base.strict import Reads, Section, unknown
from conceptloader.errors import ConfigError

T = TypeVar("T")


def as_path(value: Any, where: str) -> str:
    """`value` as the text of a path. Raises: ConfigError."""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    raise ConfigError(where, value, "a path", f"set {where} to the path of a file")


File = Annotated[str, Reads(as_path, "a path")]


class Options(Section):
    """Base of dataclasses of options: each has the type that its field says, and is one of its choices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for one in fields(self):  # type: ignore[arg-type]
            choices, value = one.metadata.get("choices"), getattr(self, one.name)
            if choices and value is not one.default and value not in choices:
                expected = f"one of {', '.join(choices)}"
                raise ConfigError(one.name, repr(value), expected, f"set {one.name} to one of these")


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
