"""The section `mixing` of a run: a controller gets the losses of each step, and its weights are set."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from conceptloader.base.hashing import canonical_json
from conceptloader.base.strict import Natural, Positive, Saved, build, convert, plain, unknown
from conceptloader.blend import Blend
from conceptloader.blend.load import read_yaml
from conceptloader.errors import ConceptloaderError, ConfigError, ResumeError
from conceptloader.mixing.controller import MINIMUM, Controller, Weights, check_losses, rounded, shares
from conceptloader.mixing.kinds import LEARNING, learning
from conceptloader.order.mixture import Phase
from conceptloader.order.progress.found import to_continue
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.weights import exact_weights

logger = logging.getLogger(__name__)

M = TypeVar("M", bound="Mixing")
Hear = Callable[[Callable[[], str]], str]
"""What the first rank reads, on every rank."""


@dataclass(frozen=True, kw_only=True)
class SavedMixing(Saved):
    """kind: of the controller; steps: that it has observed; state: its own."""

    kind: str
    steps: Natural
    state: dict[str, Any]


class Mixing:
    """What sets the weights of a run while it lives, and what it keeps from step to step.

    Args:
        blend: With a section `mixing`; its own weights are where a controller starts.
        saved: Its state, where a run is resumed.

    Attributes:
        kind: Of the controller, as the configuration names it.
        controller: Of a kind that learns from losses; else None.
        steps: That were observed.
    """

    def __init__(self, blend: Blend, saved: SavedMixing | None = None) -> None:
        ((self.kind, options),) = (blend.config.mixing or {}).items()
        self.names, self.steps = blend.config.names, 0 if saved is None else saved.steps
        self.controller: Controller | None = None
        self._refused: Weights | None = None
        if self.kind == "file":
            self._file, self._seen, self._said = options, "", ""
        else:
            planned = next(one for one in reversed(blend.spec.phases) if one.start not in blend.spec.live)
            given = _by_dataset(blend.spec, planned)
            start = shares({name: max(given.get(name, 0), MINIMUM * sum(given.values())) for name in self.names})
            self.controller = learning(self.kind, options, start, None if saved is None else saved.state)

    @classmethod
    def resumed(cls: type[M], blend: Blend, saved: Any, fresh: bool = False) -> "M | None":
        """That of a configuration, with the state that a checkpoint has of it; None without a section `mixing`.

        fresh: it begins again.

        Raises:
            ResumeError: If the checkpoint has that of another controller.
        """
        kind = next(iter(blend.config.mixing)) if blend.config.mixing else None
        try:
            found = None if saved is None else build(SavedMixing, saved, "mixing")
        except ConfigError as error:
            raise ResumeError("mixing", f"corrupt ({error})", fix="take another checkpoint") from error
        if found is not None and found.kind != kind and not fresh:
            raise ResumeError(
                "mixing", f"saved {found.kind}, now {kind or 'none'}",
                fix='go back to it, or begin again with allow_changed=["mixing"]',
            )  # fmt: skip
        return cls(blend, None if fresh else found) if blend.config.has_controller else None

    @classmethod
    def begun(cls: type[M], blend: Blend) -> "M | None":
        """That of a run that begins, or is continued from another trainer's checkpoint."""
        path = blend.config.continue_from
        saved = to_continue(path).more.get("mixing") if path is not None and blend.config.mixing else None
        return cls.resumed(blend, saved)

    def decide(self, blend: Blend, losses: Weights | None, sample: int, hear: Hear) -> Weights | None:
        """The weights to be set after a step; None if they are in force.

        Args:
            blend: Of the run.
            losses: Mean loss of each dataset in the step, over all ranks; kinds that do not learn need none.
            sample: Global sample from which on weights can be set.
            hear: See Hear.

        Raises:
            ConfigError: For losses that are missing or wrong, and weights that cannot be set; nothing is changed.
        """
        if losses is not None:
            check_losses(losses, self.names)
        if self.controller is not None:
            if losses is None or not (losses or self.steps):
                raise ConfigError(
                    "observe", "no losses", f"the mean loss of each dataset: {self.kind} learns from them"
                )
            weights = self.controller.observe(self.steps, losses)
        else:
            text = hear(self._read) if self.kind == "file" else ""
            weights = json.loads(text or "null")
        self.steps += 1
        if weights is None:
            return None
        if self.kind not in LEARNING and weights != rounded(weights):
            weights = rounded(shares(weights))
        same = exact_weights(weights, f"mixing.{self.kind}") == _by_dataset(blend.spec, blend.spec.phases[-1])
        refused = self.kind == "file" and weights == self._refused  # until the file changes
        return None if same or refused else weights

    def apply(self, weights: Weights, set_weights: Callable[[Weights], Any]) -> None:
        """Set weights. Those that would break max_epochs by the end of the run are not set: those in force do not.

        That, and weights of a file that cannot be set at all, is an error in the log, and the run continues.
        """
        try:
            set_weights(weights)
        except ConfigError as error:
            if self.kind != "file" and not error.path.endswith(".max_epochs"):
                raise
            if self.kind == "file" or self._refused is None:
                logger.error("mixing.%s: %s; the weights stay as they are", self.kind, error)
            self._refused = weights
        else:
            self._refused = None

    def state(self) -> dict[str, Any]:
        """Plain JSON, for a checkpoint."""
        state = {} if self.controller is None else self.controller.state()
        found: dict[str, Any] = plain(SavedMixing(kind=self.kind, steps=self.steps, state=state))
        return found

    def _read(self) -> str:
        """The weights of the file, as JSON; "", with an error in the log, if they are wrong.

        They count when two steps have found the same: a file may be read while it is written.
        """
        before = self._seen
        try:
            self._seen = canonical_json(_checked_weights(read_yaml(self._file), self.names, f"{self._file}: weights"))
        except ConceptloaderError as error:
            self._seen = ""
            self._say(str(error))
            return ""
        if before != self._seen:
            self._said = ""
        return self._seen if before == self._seen else ""

    def _say(self, problem: str) -> None:
        if problem != self._said:
            logger.error("mixing.file: %s; the weights stay as they are", problem)
        self._said = problem


def _by_dataset(spec: OrderSpec, phase: Phase) -> dict[str, int]:
    return {spec.members[name].dataset: int(weight) for name, weight in phase.weights.items()}


def _checked_weights(data: Any, names: Sequence[str], where: str) -> Weights:
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
