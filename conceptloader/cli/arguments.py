"""Types of arguments that several commands have."""

import argparse
from collections.abc import Callable
from typing import Any

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(text: str) -> int:
    """A number of bytes: 4096, 64K, 512M, 8G."""
    number = text.upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:].isalpha() else ""
    try:
        if unit not in _UNITS:
            raise ValueError
        value = int(float(number.removesuffix(unit)) * _UNITS[unit])
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a size such as 4096, 64K, 512M or 8G") from None
    return at_least_one(value)


def positive(text: str) -> int:
    return at_least_one(_integer(text))


def not_negative(text: str) -> int:
    """An integer that counts from 0."""
    value = _integer(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"found {value}, expected 0 or more")
    return _in_64_bits(value)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected an integer") from None


def fraction(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a fraction from 0 to 1, such as 0.05")
    return value


def add_span_rules(add: Callable[..., Any]) -> None:
    """The options of `SpanRules`; `add` is add_argument of a parser or a group."""
    add(
        "--align",
        choices=["first", "any", "majority"],
        default="first",
        help="a token belongs to the span with its first character (default), any, or more than half of its characters",
    )
    add(
        "--eos-span",
        choices=["none", "last"],
        default="none",
        help="the eos of a document belongs to no span (default), or to the one that ends last",
    )
    add_max_lost_spans(add)
    add(
        "--overlap",
        choices=["refuse", "levels", "union"],
        default="refuse",
        help="spans that overlap or nest: an error (default); one track per level; or segments with all concepts",
    )
    add("--levels", type=positive, default=3, metavar="N", help="tracks for --overlap levels (default: 3)")


SPAN_RULES = "align", "eos_span", "overlap", "levels", "max_lost_spans"


def chosen(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The values of some arguments, for a function that calls them by the same names."""
    return {name: getattr(arguments, name) for name in names}


def add_max_lost_spans(add: Callable[..., Any]) -> None:
    add(
        "--max-lost-spans",
        type=fraction,
        default=0.01,
        metavar="FRACTION",
        help="of a track's spans that may be left without a token (default: 0.01)",
    )


def at_least_one(value: int) -> int:
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {value}, expected at least 1")
    return _in_64_bits(value)


def _in_64_bits(value: int) -> int:
    if value >= 1 << 63:
        raise argparse.ArgumentTypeError(f"found {value}, expected less than 2**63")
    return value


def pair(separator: str, form: str) -> Callable[[str], tuple[str, str]]:
    """A type for `KEY<separator>VALUE`, as a tuple of the two."""

    def parse(text: str) -> tuple[str, str]:
        key, found, value = text.partition(separator)
        if not (key and found and value):
            raise argparse.ArgumentTypeError(f"found {text!r}, expected {form}")
        return key, value

    return parse
