"""How the ranks of a run decide together: the one argument through which they talk, and the process that is alone."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from conceptloader.errors import ConfigError

T = TypeVar("T")


class Ranks(Protocol):
    """The ranks that make the same calls in the same order."""

    def compare(self, what: str, facts: Mapping[str, Any]) -> None:
        """Raise ConfigError on every rank unless all of them have called this with equal facts, JSON by name."""
        ...

    def from_first(self, what: str, read: Callable[[], str]) -> str:
        """What `read` returns on the first rank, on all of them. A comparison has to follow."""
        ...


class Alone:
    """A process that talks to no other one."""

    def compare(self, what: str, facts: Mapping[str, Any]) -> None:
        """There is nothing to compare with."""

    def from_first(self, what: str, read: Callable[[], str]) -> str:
        """What this process reads."""
        return read()


def launched() -> int:
    """How many processes torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def require_alone(processes: int, rank: str, size: str) -> None:
    """Raise ConfigError if this process, which was not told its rank, is one of several.

    rank, size: arguments that tell it. Each process would read what the others read.
    """
    if processes > 1:
        raise ConfigError(
            f"{rank}, {size}",
            f"not both, in one of {processes} processes",
            "those of the ranks that read different samples",
            f"pass both; where all ranks read the same samples, {rank}=0 and {size}=1",
        )


def together(ranks: Ranks, what: str, decide: Callable[[], T], facts: Callable[[T], Mapping[str, Any]]) -> T:
    """What `decide` returns, once all ranks have decided the same; nothing may be changed before.

    Where it raises on one rank, that rank must not leave the others waiting for it: the error is compared, too, and
    then raised on every rank that has it.
    """
    error: Exception | None = None
    found = None
    try:
        found = decide()
        said = dict(facts(found))
    except Exception as raised:  # also of a user's controller, or of arguments of another type
        error, said = raised, {"error": f"{type(raised).__name__}: {raised}"}
    ranks.compare(what, said)
    if error is not None:
        raise error
    return found  # type: ignore[return-value]
