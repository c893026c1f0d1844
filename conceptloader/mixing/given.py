"""Weights that do not follow losses: those of a file that is read again, and those that another run has learned."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from conceptloader.base.strict import Positive, convert, unknown
from conceptloader.errors import ConfigError
from conceptloader.mixing.controller import Weights


class Replay:
    """The weights of another run, each from the sample on at which it set them.

    Args:
        changes: (sample over all ranks, weights from there on), in order.
    """

    def __init__(self, changes: Sequence[tuple[int, Weights]]) -> None:
        self._starts, self._weights = [start for start, _ in changes], [weights for _, weights in changes]

    def at(self, sample: int) -> Weights | None:
        """The weights in force at a sample, None before the first ones."""
        number = bisect_right(self._starts, sample)
        return self._weights[number - 1] if number else None


def checked_weights(data: Any, names: Sequence[str], where: str) -> Weights:
    """Dataset -> weight, from what a YAML file holds.

    Raises:
        ConfigError: Unless it has a weight above 0 for each dataset, and none for others. A file that was
            truncated lacks some.
    """
    weights: Weights = convert(data, dict[str, Positive], where)
    for name in weights:
        if name not in names:
            raise unknown(f"{where}.{name}", name, names, "dataset")
    for name in names:
        if name not in weights:
            raise ConfigError(f"{where}.{name}", "nothing", "a weight for each dataset")
    return weights
