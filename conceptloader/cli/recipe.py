"""--recipe FILE: options of a command in a YAML file, with the same names and types as on the command line."""

import argparse
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from conceptloader.errors import ConfigError

INPUTS = "inputs"


def add_recipe(parser: argparse.ArgumentParser) -> None:
    meaning = "YAML file with options (named as here) and `inputs`, which the command line replaces"
    parser.add_argument("--recipe", metavar="FILE", help=meaning)


def use_recipe(given: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Make the options of the --recipe on a command line the defaults of its command.

    Paths in the recipe are relative to it. What the command line repeats is added; anything else replaces.

    Raises: ConfigError for a file that is not a mapping, and for unknown options; ReadError.
    """
    alone = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    alone.add_argument("--recipe", action="append", default=[])
    recipes = alone.parse_known_args(list(given))[0].recipe
    commands = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    command = commands.get(given[0])
    if not recipes or command is None or "--recipe" not in command._option_string_actions:
        return
    if len(recipes) > 1:
        raise ConfigError(
            "--recipe", f"{len(recipes)} files", "one file", "put all options into one file, and pass --recipe once"
        )
    from conceptloader.base.yamlfile import read_yaml  # which few command lines need

    (file,) = recipes
    found = read_yaml(file)
    if not isinstance(found, dict):
        fix = "write OPTION: VALUE lines, such as `out: data/corpus`"
        raise ConfigError(file, type(found).__name__, "options and their values", fix)
    known = {(action.option_strings or [action.dest])[0].removeprefix("--"): action for action in command._actions}
    for key, value in found.items():
        if key not in known or key in ("recipe", "-h"):
            from conceptloader.base.strict import unknown

            raise unknown(f"{file}: {key}", key, known.keys() - {"recipe", "-h", "dataset"}, "option")
        action = known[key]
        action.default, action.required = _value(command, action, file, key, value), False
        action.nargs = "*" if key == INPUTS else action.nargs


def _value(command: argparse.ArgumentParser, action: argparse.Action, file: str, key: str, value: Any) -> Any:
    """The value of an option as its action makes it of words of a command line."""
    where, many = f"{file}: {key}", key == INPUTS or isinstance(action, argparse._AppendAction)
    form = "PATH" if key == INPUTS else str(action.metavar)
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ConfigError(where, repr(value), "true or false", f"write true or false for {where}")
        return value
    if isinstance(value, list) != many and (isinstance(value, list) or key == INPUTS):
        expected, fix = ("a list of files or directories", "[a.jsonl, b.jsonl]") if many else ("a single value", "one")
        raise ConfigError(where, repr(value), expected, f"write {key}: {fix}")

    def word(item: Any) -> str:
        if item is not None and not isinstance(item, (bool, list, dict)):
            return str(item)
        if form not in ("JSON", "NAME=VALUE"):
            fix = f"put the value of {where} in quotes, or omit the option"
            raise ConfigError(where, repr(item), "text or a number", fix)
        return json.dumps(item, default=str)

    def read(item: str) -> Any:
        try:
            found = item if key == INPUTS else command._get_values(action, [item])
        except argparse.ArgumentError as error:
            others = f"one of {', '.join(map(str, action.choices))}" if action.choices else "an integer"
            expected = ConfigError.saying("", error.message).expected or others  # of our own types, or of argparse's
            raise ConfigError(where, repr(item), expected, f"correct {key} in {file}") from error
        if re.search(r"\b(FILE|DIR|PATH)\b", form):
            return (found[0], _beside(file, found[1])) if isinstance(found, tuple) else _beside(file, found)
        return found

    if isinstance(value, dict) and many:
        separator = ":" if ":" in form else "="
        return [read(f"{name}{separator}{word(item)}") for name, item in value.items()]
    found = [read(word(item)) for item in (value if isinstance(value, list) else [value])]
    return found if many else found[0]


def _beside(file: str, path: str) -> str:
    """A path that stands in a recipe, as seen from there; what names no file stays as it is."""
    named = path == "bytes" or path.startswith("hub:") or "://" in path
    return path if named else os.path.join(os.path.dirname(file), path)
