"""The section `mixing` of a run: a controller gets the losses of each step, and its weights are set."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from conceptloader.base.hashing import canonical_json
from conceptloader.base.strict import Natural, Positive, Saved, build, convert, plain, unknown
from conceptloader.blend import Blend
from conceptloader.blend.load import read_yaml
from conceptloader.errors import ConceptloaderError, ConfigError, ResumeError
from conceptloader.mixing.controller import MINIMUM, Controller, Weights, check_losses, rounded, shares
from conceptloader.mixing.doremi import DoReMi
from conceptloader.mixing.kinds import LEARNING, learning
from conceptloader.mixing.odm import ODM
from conceptloader.order.phases import Phase
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.weights import exact_weights
from conceptloader.run.ranks import Ranks

logger = logging.getLogger(__name__)

_WITHOUT = 16
"""Steps in a row without losses after which a mixture that learns from them raises."""

M = TypeVar("M", bound="Mixing")
S = TypeVar("S", bound=Saved)


@dataclass(frozen=True, kw_only=True)
class SavedMixing(Saved):
    """kind: of the controller; steps: that it has observed; state: its own.

    options: JSON of each of them; None in states of 0.2.0.
    """

    kind: str
    steps: Natural
    state: dict[str, Any]
    options: dict[str, str] | None


@dataclass(frozen=True, kw_only=True)
class SavedFile(Saved):
    """What decides whether the weights in a file are set.

    seen: those that the last step has found, as JSON, "" if they were wrong. refused: which cannot be set.
    """

    seen: str
    refused: Mapping[str, float] | None


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
        self._options: dict[str, str] = {}
        self._without, self._warned = 0, False  # steps in a row without losses
        self._asked = False  # for the weights of the loss, since the last step
        if self.kind == "file":
            self._file, self._seen, self._said = options, "", ""
            if saved is not None and saved.state:  # which states of 0.2.0 have not
                state = _saved(SavedFile, saved.state)
                self._seen, self._refused = state.seen, state.refused
        else:
            planned = next(one for one in reversed(blend.spec.phases) if one.start not in blend.spec.live)
            given = _by_dataset(blend.spec, planned)
            start = shares({name: max(given.get(name, 0), MINIMUM * sum(given.values())) for name in self.names})
            self.controller = learning(self.kind, options, start, None if saved is None else saved.state)
            known = plain(self.controller.options) if isinstance(self.controller, (ODM, DoReMi)) else options
            self._options = {key: json.dumps(value, sort_keys=True, default=str) for key, value in known.items()}
            if saved is not None and saved.options is not None:
                self._compare(saved.options)

    @classmethod
    def resumed(cls: type[M], blend: Blend, saved: Any, allow: str | None = None) -> "M | None":
        """That of a configuration, with the state that a checkpoint has of it; None without a controller.

        allow: how to begin again where the state is that of another one; None if that is asked for. A state that fits
        is kept in any case, since options stay in scripts that are restarted.

        Raises:
            ResumeError: If the checkpoint has that of another controller.
        """
        kind = next(iter(blend.config.mixing)) if blend.config.mixing else None
        if isinstance(saved, Mapping):
            saved = {"options": None, **saved}
        found = None if saved is None else _saved(SavedMixing, saved)
        if found is not None and found.kind != kind and allow is not None:
            raise ResumeError(
                "mixing", f"saved {found.kind}, now {kind or 'none'}", fix=f"go back to it, or begin again with {allow}"
            )
        if not blend.config.has_controller:
            return None
        try:
            return cls(blend, found if found is None or found.kind == kind else None)
        except ResumeError as error:
            if allow is not None:
                raise
            logger.warning("mixing: begins again, as accepted: %s", error)
            return cls(blend)

    @property
    def weighs_losses(self) -> bool:
        """Whether it has weights to multiply the losses by."""
        if isinstance(self.controller, DoReMi):
            return self.controller.options.apply == "loss"
        return hasattr(self.controller, "loss_weights")

    def heard(self, losses: Weights | None, ranks: Ranks) -> Weights | None:
        """The losses of a step, which one rank alone knows, on all of them; None for kinds that need none."""
        if self.controller is None:
            return None
        # NaN passes here, so that every rank raises for it, and none alone.
        told = ranks.told("losses of datasets", None if losses is None else json.dumps(dict(losses), sort_keys=True))
        found: Weights = json.loads(told)
        return found

    def heard_file(self, ranks: Ranks) -> str:
        """What the first rank has read in the file of weights, on all of them, as JSON; "" for other kinds."""
        return ranks.from_first("mixing", self._read) if self.kind == "file" else ""

    def decide(self, blend: Blend, losses: Weights | None, text: str) -> Weights | None:
        """The weights to be set after a step; None if they are in force.

        Args:
            blend: Of the run.
            losses: Mean loss of each dataset in the step, over all ranks; kinds that do not learn need none.
            text: What heard_file returned.

        Raises:
            ConfigError: For losses that are missing or wrong, and weights that cannot be set; nothing is changed.
        """
        if losses is not None:
            check_losses(losses, self.names)
        if self.controller is not None:
            weights = self.controller.observe(self.steps, self._checked(losses))
        else:
            # Two steps have to find the same: a file may be read while it is written.
            before, self._seen = self._seen, text
            weights = json.loads(self._seen) if self._seen and self._seen == before else None
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
        state = self.controller.state() if self.controller else plain(SavedFile(seen=self._seen, refused=self._refused))
        saved = SavedMixing(kind=self.kind, steps=self.steps, state=state, options=self._options)
        found: dict[str, Any] = plain(saved)
        return found

    def loss_weights(self) -> dict[str, float]:
        """What to multiply the loss of each dataset by. To be called in every step, on every rank.

        Raises:
            ConfigError: If the controller has none.
        """
        find = getattr(self.controller, "loss_weights", None)
        if find is None:
            raise ConfigError("loss_weights", self.kind, "a controller with weights of the loss, as doremi")
        self._asked = True
        weights: dict[str, float] = find()
        return weights

    def _compare(self, saved: Mapping[str, str]) -> None:
        """Warn of options that were others when the state was saved."""
        for key in sorted({*saved, *self._options}):
            old, new = (one.get(key, "nothing") for one in (saved, self._options))
            if old != new:
                logger.warning("mixing.%s.%s: saved %s, now %s, from here on", self.kind, key, old, new)

    def _checked(self, losses: Weights | None) -> Weights:
        """Losses to learn from. Raises ConfigError if there are none for long, or their weights are not applied."""
        expected = f"the mean loss of each dataset: {self.kind} learns from them"
        if losses is None or not (losses or self.steps):
            raise ConfigError("observe", "no losses", expected)
        self._without = 0 if losses else self._without + 1
        if self._without == _WITHOUT:
            raise ConfigError("observe", f"no losses in {_WITHOUT} steps, up to step {self.steps}", expected)
        if self._without and not self._warned:
            self._warned = True
            logger.warning("mixing.%s: step %d has no losses; the weights stay as they are", self.kind, self.steps)
        if self.steps and not self._asked and self.weighs_losses:
            raise ConfigError(
                f"mixing.{self.kind}",
                "weights of the loss that nobody asked for: the model trains as if all were 1",
                fix="multiply the loss of each dataset by loader.loss_weights() in every step, or let the mixture have "
                "the weights (doremi: apply: mixture)",
            )
        self._asked = False
        return losses

    def _read(self) -> str:
        """The weights of the file, as JSON; "", with an error in the log, if they are wrong."""
        try:
            found = canonical_json(_checked_weights(read_yaml(self._file), self.names, f"{self._file}: weights"))
        except ConceptloaderError as error:
            if str(error) != self._said:
                logger.error("mixing.file: %s; the weights stay as they are", error)
            self._said = str(error)
            return ""
        self._said = ""
        return found


def _saved(cls: type[S], data: Any) -> S:
    try:
        return build(cls, data, "mixing")
    except ConfigError as error:
        raise ResumeError("mixing", f"corrupt ({error})", fix="take another checkpoint") from error


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
