"""Arguments of several commands, and types of arguments."""

import argparse
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from conceptloader.errors import ConfigError

T = TypeVar("T")
Add = Callable[..., Any]  # add_argument of a parser or a group

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_END = 1 << 63


def kind(expected: str, read: Callable[[str], T], fits: Callable[[T], bool]) -> Callable[[str], T]:
    """Return a type of arguments: `read` parses the text, `fits` accepts the value."""

    def parse(text: str) -> T:
        with suppress(ValueError, OverflowError, KeyError):
            value = read(text)
            if fits(value):
                return value
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")

    return parse


def _bytes(text: str) -> int:
    number = text.upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:].isalpha() else ""
    return int(float(number.removesuffix(unit)) * _UNITS[unit])


def _pair(text: str) -> tuple[int, int]:
    first, second = text.split(":")
    if not (first.isdecimal() and second.isdecimal()):
        raise ValueError
    return int(first), int(second)


def _track_file(text: str) -> tuple[str, str]:
    """Split [TRACK=]FILE; a path may hold "=", too."""
    track, equals, file = text.partition("=")
    return (track, file) if equals and os.sep not in track else ("concepts", text)


positive = kind("an integer of 1 or more, below 2**63", int, lambda value: 1 <= value < _END)
not_negative = kind("an integer of 0 or more, below 2**63", int, lambda value: 0 <= value < _END)
size = kind("a size such as 4096, 64K, 512M or 8G, below 2**63", _bytes, lambda value: 1 <= value < _END)
above_zero = kind("a number above 0", float, lambda value: 0 < value < math.inf)
fraction = kind("a fraction from 0 to 1, such as 0.05", float, lambda value: 0 <= value <= 1)
steps = kind("A:B with A below B, such as 1000:2000", _pair, lambda pair: pair[0] < pair[1] < 1 << 62)
track_file = kind("FILE or TRACK=FILE", _track_file, all)
_root = kind("a directory that is there, or a URL", str, lambda path: "://" in path or os.path.isdir(path))
json_object = kind("a JSON object", json.loads, lambda value: isinstance(value, dict))


def by_key(name: str, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The pairs of an option that is repeated. Raises: ConfigError for a key that is given twice."""
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(flag, f"{key!r} twice", "each name once", f"pass {flag} for {key} once")
    return dict(pairs)


def add_pairs(add: Add, name: str, form: str, meaning: str, example: str = "") -> None:
    """Add a repeatable option KEY=VALUE, or with the other separator of `form`; its values are tuples of the two."""
    separator = "=" if "=" in form else ":"
    read = kind(form + example, lambda text: text.partition(separator)[::2], all)
    add(name, action="append", default=[], type=read, metavar=form, help=meaning)


def chosen(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The values of some arguments, for a function that calls them by the same names."""
    return {name: getattr(arguments, name) for name in names}


def given(arguments: argparse.Namespace, names: Iterable[str]) -> Iterator[str]:
    """Flags of those arguments that have another value than by default."""
    parser, wanted = arguments.parser, set(names)
    for action in parser._actions:
        if action.dest in wanted and getattr(arguments, action.dest) not in (parser.get_default(action.dest), []):
            yield str((action.option_strings or [action.metavar])[-1])


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def refuse_beside(option: str, arguments: argparse.Namespace, *names: str) -> None:
    """Raise ConfigError for arguments of these names, which `option` would ignore."""
    for flag in given(arguments, names):
        raise ConfigError(
            arguments.parser.prog.split()[-1], f"{option} and {flag}", "only one of the two", f"omit {option} or {flag}"
        )


def refuse_without(option: str, arguments: argparse.Namespace, *names: str) -> None:
    """Raise ConfigError for arguments of these names without `option`, to which they belong."""
    if any(given(arguments, [_name(option)])):
        return
    for flag in given(arguments, names):
        raise ConfigError(
            arguments.parser.prog.split()[-1],
            f"{flag} without {option}",
            "the two together",
            f"add {option}, or omit {flag}",
        )


def refuse_all_but(option: str, arguments: argparse.Namespace, *names: str) -> None:
    """`refuse_beside` of all arguments of the command but these."""
    general = "parser", "run", "json", "verbose", "quiet", "recipe", _name(option)
    refuse_beside(option, arguments, *(vars(arguments).keys() - {*general, *names}))


def read_ids(option: str, path: str) -> list[str]:
    """Return the distinct ids in a file, one per line, as they are: 'z ' is not 'z'. Raises: ConfigError."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            found = [line.rstrip("\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            option,
            f"{path}, which cannot be read ({error})",
            "a file of ids, one per line",
            f"pass {option} the path of a file that you may read",
        ) from error
    return list(dict.fromkeys(filter(None, found)))


def add_dataset(parser: argparse.ArgumentParser, meaning: str = "directory of the dataset, or its URL") -> None:
    """Add the dataset that a command reads, and the directories that may hold its files."""
    parser.add_argument("dataset", metavar="DATASET", help=meaning)
    add_root(parser.add_argument)


def add_root(add: Add, more: str = "") -> None:
    add("--root", action="append", type=_root, metavar="DIR", help=f"further directory that may hold shards{more}")


def add_out(add: Add) -> None:
    add("--out", required=True, metavar="DIR", help="directory of the new dataset")
