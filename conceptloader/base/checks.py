"""Checks of arguments that are integers or names."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

from conceptloader.errors import ConfigError

MAX_COUNT = (1 << 63) - 1


def as_integer(value: Any, name: str) -> int:
    """`value` as an int of any sign and size. numpy integers pass, bool and float do not.

    Raises ConfigError that names the argument.
    """
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise ConfigError(name, repr(value), "an integer", f"pass {name} as an int")


def as_count(value: Any, name: str, least: int = 1) -> int:
    """`value` as an int in [least, 2**63). numpy integers pass, bool and float do not.

    Raises ConfigError that names the argument and the bounds.
    """
    try:
        count = index(value) if not isinstance(value, bool) else least - 1
    except TypeError:
        count = least - 1
    if not least <= count <= MAX_COUNT:
        raise ConfigError(
            name,
            repr(value),
            f"an integer from {least} to 2**63 - 1",
            f"pass {name} in this range",
        )
    return count


def as_names(value: Iterable[str], name: str) -> tuple[str, ...]:
    """`value` as a tuple. Raises ConfigError that names the argument for a string, whose letters would be the names."""
    if isinstance(value, str):
        raise ConfigError(name, f"the string {value!r}", "a list of names", f"pass {name}=[{value!r}]")
    return tuple(value)


def falls(starts: Sequence[int]) -> int | None:
    """The first k whose start is not above the one before it; None if they increase."""
    return next((k for k in range(1, len(starts)) if starts[k] <= starts[k - 1]), None)
