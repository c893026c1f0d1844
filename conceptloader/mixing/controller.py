"""What a controller of a mixture is, and what all of them check and round."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from conceptloader.base.strict import unknown
from conceptloader.errors import ConfigError, ResumeError

Weights = Mapping[str, float]

MINIMUM = 1e-6
MAX_LOSS = 500.0  # its exp is finite; a mean over tokens is far below, a sum of them is not


class Controller(Protocol):
    """Decides the weights of datasets while a run lives.

    A pure function of what it observed: it reads no clock, no file that changes and no random number, so that all
    ranks, and a resumed run, decide the same.
    """

    @classmethod
    def of(cls, weights: Weights, state: Mapping[str, Any] | None = None, **options: Any) -> "Controller":
        """A controller.

        Args:
            weights: Of every dataset, in the configuration; their sum is 1.
            state: What `state` returned, where a run is resumed; it decides then.
            options: Of this kind, as the configuration gives them.

        Raises:
            ConfigError: For options.
            ResumeError: For a state of other datasets.
        """
        ...

    def observe(self, step: int, losses: Weights) -> Weights | None:
        """Learn from a step.

        Args:
            step: Of the trainer, from 0.
            losses: Mean loss of each dataset that the step held, equal on all ranks.

        Returns:
            Weights from the next step on, of every dataset; None for those that hold.

        Raises:
            ConfigError: For unknown names and losses that are no number; the controller is as before.
        """
        ...

    def state(self) -> dict[str, Any]:
        """All that decides, as plain JSON."""
        ...


def rounded(weights: Weights) -> dict[str, float]:
    """Weights to be set: of six digits, so that the last bit of a platform's `exp` changes no order, and never 0.

    A dataset with weight 0 would have no loss any more, and no way back: it keeps a millionth.
    """
    return {name: max(round(weight, 6), MINIMUM) for name, weight in weights.items()}


def shares(weights: Weights) -> dict[str, float]:
    """In the same proportions, of sum 1."""
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def check_losses(losses: Weights, names: Iterable[str]) -> None:
    """Raise ConfigError for a loss of another dataset, and for one that is NaN, infinite or no mean over tokens."""
    known = set(names)
    for name, loss in losses.items():
        if name not in known:
            raise unknown(f"losses.{name}", name, known, "dataset")
        if isinstance(loss, bool) or not isinstance(loss, (int, float)) or not abs(loss) <= MAX_LOSS:
            raise ConfigError(
                f"losses.{name}", str(loss), f"a finite mean loss, of at most {MAX_LOSS:.0f}", "give means over tokens"
            )


def check_rule(state: Mapping[str, Any], rule: str) -> None:
    """Raise ResumeError if the numbers of a state are those of another rule, as options can choose it."""
    if state.get("rule") != rule:
        raise ResumeError("state of the mixing: rule", repr(state.get("rule")), rule, "put the options back")


def saved_rows(state: Mapping[str, Any], names: Iterable[str], columns: int) -> list[dict[str, float]]:
    """So many numbers of each dataset, by dataset, from a state. Raises ResumeError for other datasets or values."""
    found, expected = state.get("datasets"), list(names)
    if not isinstance(found, Mapping) or sorted(found) != sorted(expected):
        raise ResumeError(
            "state of the mixing",
            ", ".join(map(str, found)) if isinstance(found, Mapping) else repr(found),
            f"numbers for {', '.join(sorted(expected))}",
            "a mixture learns over the datasets that it began with: begin a stage of data (new_stage) with others",
        )
    for name, row in found.items():
        if not isinstance(row, list) or len(row) != columns:
            raise ResumeError(f"state of the mixing: {name}", repr(row), f"{columns} numbers")
    return [{name: saved_number(found[name][k], name) for name in expected} for k in range(columns)]


def saved_number(value: Any, where: str) -> float:
    """A number from a state. Raises ResumeError if it is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ResumeError(f"state of the mixing: {where}", repr(value), "a finite number")
    return float(value)
