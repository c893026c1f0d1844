"""--recipe FILE: options of a command in a YAML file, with the same names as on the command line."""

import argparse
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from conceptloader.base.arguments import track_file
from conceptloader.errors import ConfigError

INPUTS = "inputs"


def add_recipe(parser: argparse.ArgumentParser) -> None:
    meaning = "YAML file with options (named as here) and `inputs`, which the command line replaces"
    parser.add_argument("--recipe", metavar="FILE", help=meaning)


def with_recipe(given: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return the command line with the options of its --recipe before its own.

    Paths in the recipe are relative to it.
    Repeatable options are repeated for each item of a list, and for each KEY=VALUE of a mapping. Inputs of the command
    line replace those of the recipe.

    Raises: ConfigError for a file that is not a mapping, and for unknown options; ReadError.
    """
    alone = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    alone.add_argument("--recipe", action="append", default=[])
    recipes = alone.parse_known_args(list(given))[0].recipe
    commands = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    command = commands.get(given[0])
    if not recipes or command is None or "--recipe" not in command._option_string_actions:
        return list(given)
    if len(recipes) > 1:
        raise ConfigError(
            "--recipe", f"{len(recipes)} files", "one file", "put all options into one file, and pass --recipe once"
        )
    from conceptloader.base.yamlfile import read_yaml  # which few command lines need

    (file,) = recipes
    found = read_yaml(file)
    if not isinstance(found, dict):
        raise ConfigError(
            file,
            type(found).__name__,
            "options and their values",
            "write OPTION: VALUE lines, such as `out: data/corpus`",
        )
    inputs = found.pop(INPUTS, [])
    if not isinstance(inputs, list):
        raise ConfigError(
            f"{file}: {INPUTS}", repr(inputs), "a list of files or directories", f"write {INPUTS}: [a.jsonl, b.jsonl]"
        )
    options = [word for key, value in found.items() for word in _option(command, file, key, value)]
    inputs = [] if _has_inputs(command, given[1:]) else _beside(file, [*map(str, inputs)])
    return [given[0], *options, *given[1:], *inputs]


def _beside(file: str, path: Any) -> Any:
    """Paths that stand in a recipe, as seen from there; what names no file stays as it is."""
    if isinstance(path, list):
        return [_beside(file, one) for one in path]
    if not isinstance(path, str) or path == "bytes" or path.startswith("hub:") or "://" in path:
        return path
    return os.path.join(os.path.dirname(file), path)


def _has_inputs(command: argparse.ArgumentParser, words: Sequence[str]) -> bool:
    """Whether the command line has INPUT itself, after the arguments that stand before it."""
    rest, count = iter(words), 0
    for word in rest:
        if word == "--":
            count += len([*rest])
        elif not word.startswith("-"):
            count += 1
        elif "=" not in word and (action := command._option_string_actions.get(word)) and action.nargs is None:
            next(rest, None)  # its value
    return count > sum(action.dest != INPUTS for action in command._get_positional_actions())


def _option(command: argparse.ArgumentParser, file: str, key: object, value: Any) -> Iterator[str]:
    known = {option[2:]: action for option, action in command._option_string_actions.items() if option[:2] == "--"}
    action = known.get(str(key))
    if action is None or key in ("recipe", "help"):
        from conceptloader.base.strict import unknown

        raise unknown(f"{file}: {key}", key, {*known, INPUTS} - {"recipe", "help"}, "option")
    path = f"{file}: {key}"
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ConfigError(
                path,
                repr(value),
                "true or false",
                f"write true or false for {path}",
            )
        if value:
            yield f"--{key}"
        return
    separator = ":" if ":" in str(action.metavar) else "="
    many = isinstance(action.default, list) or action.__class__.__name__ == "_AppendAction"
    if isinstance(value, dict) and many:
        if action.metavar == "NAME=VALUE":  # of JSON
            value = {name: _json(path, one) if isinstance(one, (list, dict)) else one for name, one in value.items()}
        nested = [one for one in value.values() if isinstance(one, (list, dict))]  # which is refused below
        value = nested or [f"{name}{separator}{item}" for name, item in value.items()]
    if isinstance(value, dict) and not many:
        value = _json(path, value)  # for options that are an object; others reject it
    if isinstance(value, list) and not many:
        raise ConfigError(path, repr(value), "a single value", f"write {path} without brackets")
    for item in value if isinstance(value, list) else [value]:
        if item is None or isinstance(item, (bool, list, dict)):
            raise ConfigError(
                path, repr(item), "text or a number", f"put the value of {path} in quotes, or omit the option"
            )
        if isinstance(item, str) and re.search(r"\b(FILE|DIR|PATH)\b", str(action.metavar)):
            track, name = track_file(item) if "TRACK=" in str(action.metavar) else ("", item)
            item = f"{track}={_beside(file, name)}" if track else _beside(file, name)
        try:
            command._get_values(action, [str(item)])
        except argparse.ArgumentError as error:
            others = f"one of {', '.join(map(str, action.choices))}" if action.choices else "an integer"
            expected = ConfigError.saying("", error.message).expected or others  # of our own types, or of argparse's
            raise ConfigError(path, repr(str(item)), expected, f"correct {key} in {file}") from error
        yield f"--{key}={item}"


def _json(path: str, value: Any) -> str:
    try:
        return json.dumps(value)
    except TypeError as error:  # a date, for instance
        raise ConfigError(
            path, str(error), "texts, numbers, lists and mappings", f"put the value of {path} in quotes"
        ) from error
