"""What a controller of a mixture is, and what all of them check and round. learning.py asks it and sets weights."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from conceptloader.base.strict import Rule, Saved, build, convert, unknown
from conceptloader.errors import ConfigError, ResumeError

Weights = Mapping[str, float]
S = TypeVar("S", bound=Saved)
R = TypeVar("R", bound="SavedRows")

MINIMUM = 1e-6
# Its exp is finite; a mean over tokens is far below, a sum of them is not.
Loss = Annotated[float, Rule(lambda loss: abs(loss) <= 500, "of at most 500, as means over tokens are")]


class Controller(ABC):
    """Decides the weights of datasets while a run lives: derive from it, and name it in the configuration.

    `mixing: {"module:Class": {every: 100}}` makes `Class(weights, state, every=100)` on every rank; a path instead of
    the options stands for `{path: PATH}`. `observe` and `state` have to be written.

    A pure function of its arguments and of what it observed: no clock, no file that changes, no random number, so that
    all ranks, and a resumed run, decide the same. It is copied before each step: keep no open files and no threads.

    Args:
        weights: Of every dataset, in the configuration; their sum is 1.
        state: What `state` returned, where a run is resumed; it decides then.
        options: As the configuration gives them; `path` is absolute, and may differ between ranks.

    Attributes:
        options: A mapping or dataclass of the options with their defaults: when a resumed run has others than the
            state, a warning names both. By default those that the configuration gives.
        learns: False for one that needs no losses, which trainers then need not compute: it observes what `look`
            returns.

    Raises:
        ConfigError: For options.
        ResumeError: For a state of other datasets.
    """

    options: Any = None
    learns: ClassVar[bool] = True

    @abstractmethod
    def __init__(self, weights: Weights, state: Mapping[str, Any] | None = None, **options: Any) -> None: ...

    @abstractmethod
    def observe(self, step: int, seen: Any) -> Weights | None:
        """Learn from a step.

        Args:
            step: Of the trainer, from 0.
            seen: Mean loss of each dataset that the step held: finite, equal on all ranks, and never of no dataset at
                all. With `learns = False` the text that `look` returned.

        Returns:
            Weights from the next step on, of every dataset; None for those that hold. Only their proportions matter.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """All that decides, as plain JSON."""

    def due(self, step: int) -> bool:
        """Whether it observes this step; others change nothing, and cost no communication. A function of it alone."""
        return True

    def look(self) -> str:
        """With `learns = False`: what all ranks are to observe. Called in each step that is due, on the first rank."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SavedRows(Saved):
    """datasets: numbers of each."""

    datasets: Mapping[str, tuple[float, ...]]


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
        convert(loss, Loss, f"losses.{name}")


def saved(kind: type[S], state: Any) -> S:
    """What a state holds. Raises ResumeError for one that is corrupt."""
    try:
        return build(kind, state, "mixing")
    except ConfigError as error:
        raise ResumeError(
            "mixing", f"a corrupt state ({error})", "the state of a mixture", "pass the state of another checkpoint"
        ) from error


def saved_rows(kind: type[R], state: Any, names: Iterable[str]) -> tuple[R, list[dict[str, float]]]:
    """What a state holds, and its rows as columns by dataset. Raises ResumeError for that of others, too."""
    found, expected = saved(kind, state), list(names)
    if sorted(found.datasets) != sorted(expected):
        raise ResumeError(
            "mixing",
            f"numbers for {', '.join(found.datasets)} in the state",
            f"numbers for {', '.join(sorted(expected))}, the datasets of the configuration",
            "restore `datasets`, or pass new_stage=True to load_state_dict, which begins the mixture again",
        )
    columns = zip(*(found.datasets[name] for name in expected), strict=True)
    return found, [dict(zip(expected, column, strict=True)) for column in columns]
