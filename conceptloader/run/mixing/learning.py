"""The section `mixing` of a configuration: a controller gets the losses of each step, and its weights are set."""

import inspect
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

from conceptloader.base.strict import Natural, Rule, Saved, convert, plain, unknown
from conceptloader.config import Blend, Config
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.segments import Segment
from conceptloader.order.weights import exact_weights
from conceptloader.run.mixing.controller import MINIMUM, Controller, Weights, check_losses, rounded, saved, shares
from conceptloader.run.ranks import Ranks

logger = logging.getLogger(__name__)

NEEDS = "weights", "whose weights never change"
CONTROLLERS = {
    "odm": "conceptloader.run.mixing.odm:ODM",
    "doremi": "conceptloader.run.mixing.doremi:DoReMi",
    "file": "conceptloader.run.mixing.file:File",
}
"""Those that have a short name in the configuration; others are named there as these are here."""
Weight = Annotated[float, Rule(lambda weight: weight >= 0, "of at least 0")]
_WITHOUT = 16
"""Steps in a row without losses after which a mixture that learns from them raises."""


def check(config: Config) -> None:
    """Raise ConfigError unless the section is one known kind with its options. Imports nothing of the user's."""
    section = config.mixing or {}
    if len(section) != 1:
        raise ConfigError(
            "mixing",
            ", ".join(section) or "nothing",
            "one controller, as `mixing: {odm: {}}`",
            "write mixing: {odm: {}}",
        )
    ((kind, options),) = section.items()
    if not isinstance(options, (str, Mapping)):
        raise ConfigError(
            f"mixing.{kind}",
            repr(options),
            "a mapping of options, {} for none",
            f"write mixing: {{{kind}: {{}}}}",
        )
    if kind in CONTROLLERS:
        try:
            controller(kind, options, dict.fromkeys(config.names, 1.0))
        except ConfigError as error:
            raise error.within("mixing", joint=".") from error
    elif ":" not in kind:
        raise unknown(f"mixing.{kind}", kind, (*CONTROLLERS, "module:Class"), "controller")
    if not config.outputs.dataset_id:
        raise ConfigError(
            "outputs.dataset_id", "false with mixing", "true, since losses are by dataset", "omit outputs.dataset_id"
        )
    for key in ("phases", "replay"):
        if getattr(config, key):
            raise ConfigError(
                key,
                f"{key} with mixing, which sets weights too",
                "weights in one place",
                f"omit {key}, and set datasets.NAME.weight",
            )


def with_paths(section: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """The section with change(path, its key) in place of the path that a controller has."""
    ((kind, options),) = section.items()
    path = options if isinstance(options, str) else options.get("path")
    if not isinstance(path, str):
        return dict(section)
    path = change(path, f"mixing.{kind}")
    return {kind: path if isinstance(options, str) else {**options, "path": path}}


def controller(kind: str, options: Any, weights: Weights, state: Mapping[str, Any] | None = None) -> Controller:
    """The controller of a section {kind: options}; see Controller.

    Raises:
        ConfigError: For a class that cannot be imported, or is no controller.
        ResumeError: For a state of other datasets.
    """
    module, _, name = CONTROLLERS.get(kind, kind).partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"mixing.{kind}",
            str(error),
            "module:Class, which can be imported",
            'write mixing: {"module:Class": {}} with a class that can be imported',
        ) from error
    if not (isinstance(found, type) and issubclass(found, Controller)):
        raise ConfigError(
            f"mixing.{kind}",
            "no controller",
            "a class derived from conceptloader.run.mixing.Controller",
            "derive the class from conceptloader.run.mixing.Controller, or name another in `mixing`",
        )
    if isinstance(options, str):
        options = {"path": options}
    try:
        inspect.signature(found).bind(weights, state, **options)
    except TypeError as error:
        raise ConfigError(
            f"mixing.{kind}",
            str(error),
            "weights, state and these options as its arguments",
            f"correct the options of mixing.{kind}",
        ) from error
    made = found(weights, state, **options)
    made.options = options if made.options is None else made.options
    return made


def resumed(blend: Blend, state: Any, allow: str | None = None) -> "Mixing | None":
    """What a configuration sets weights by, with the state that a checkpoint has of it; None without a controller.

    allow: how to begin again where the state is that of another one; None if that is asked for. A state that fits is
    kept in any case, since options stay in scripts that are restarted.

    Raises:
        ResumeError: If the checkpoint has that of another controller.
    """
    kind = next(iter(blend.config.mixing or ()), None)
    found = None if state is None else saved(SavedMixing, state)
    if found is not None and found.kind != kind:
        if allow is not None:
            raise ResumeError(
                "mixing",
                f"{kind or 'no controller'}",
                f"{found.kind}, as saved",
                f"write mixing: {{{found.kind}: ...}} again, or begin again with {allow}",
            )
        what = f"{kind} begins again" if kind else "weights stay as they are"
        logger.warning("mixing: %s, as accepted: the checkpoint has the state of %s", what, found.kind)
        found = None
    if blend.config.mixing is None:
        return None
    try:
        return Mixing(blend, found)
    except ResumeError as error:
        if allow is not None:
            raise
        logger.warning("mixing: begins again, as accepted: %s", error)
        return Mixing(blend)


@dataclass(frozen=True, kw_only=True)
class SavedMixing(Saved):
    """kind: of the controller; steps: that it has observed; state: its own; options: JSON of each of them."""

    kind: str
    steps: Natural
    state: dict[str, Any]
    options: dict[str, str]


class Mixing:
    """What sets the weights of a run while it lives, and what it keeps from step to step: see Mixing in run/weights.py.

    Args:
        blend: With a section `mixing`; its own weights are where a controller starts.
        state: Its own, where a run is resumed.

    Attributes:
        controller: What decides.
    """

    def __init__(self, blend: Blend, state: SavedMixing | None = None) -> None:
        ((self.kind, options),) = (blend.config.mixing or {}).items()
        self.names, self.steps = blend.config.names, 0 if state is None else state.steps
        planned = [one for one in blend.spec.planned if one.weights][-1]
        given = _by_dataset(blend.spec, planned)
        start = shares({name: max(given.get(name, 0), MINIMUM * sum(given.values())) for name in self.names})
        self.controller = controller(self.kind, options, start, None if state is None else state.state)
        known = plain(self.controller.options)
        known.pop("path", None)  # which may differ between ranks
        self._options = {key: json.dumps(value, sort_keys=True, default=str) for key, value in known.items()}
        self.learns = self.controller.learns
        self._failed: Exception | None = None  # of `look`
        self._refused = False  # the last weights that were to be set
        self._without, self._warned = 0, False  # steps in a row without losses
        before = self._options if state is None else state.options
        for key in sorted({*before, *self._options}):
            old, new = (one.get(key, "nothing") for one in (before, self._options))
            if old != new:
                logger.warning("mixing.%s.%s: saved %s, now %s, from here on", self.kind, key, old, new)

    @property
    def due(self) -> bool:
        """See run/weights.py."""
        return self.controller.due(self.steps)

    def hear(self, losses: Weights | None, ranks: Ranks) -> Any:
        """See run/weights.py."""
        return losses if self.learns else ranks.from_first("mixing", self._look)

    def _look(self) -> str:
        self._failed = None
        try:
            return self.controller.look()
        except Exception as error:  # of a user's: other ranks wait for this one
            self._failed = error
            return ""

    def decide(self, blend: Blend, heard: Any) -> Weights | None:
        """See run/weights.py."""
        if self._failed is not None:
            raise self._failed
        observes = self.due and (not self.learns or self._learnt(heard))
        weights = self.controller.observe(self.steps, heard) if observes else None
        self.steps += 1
        if weights is None:
            return None
        self._check(weights)
        if weights != rounded(weights):
            weights = rounded(shares(weights))
        same = exact_weights(weights, f"mixing.{self.kind}") == _by_dataset(blend.spec, blend.order.segments[-1])
        return None if same else weights

    def apply(self, weights: Weights, set_weights: Callable[[Weights], Any]) -> None:
        """Set weights. Those that would break max_epochs by the end of the run are not set: those in force do not.

        That is an error in the log, and the run continues.
        """
        try:
            set_weights(weights)
        except ConfigError as error:
            if not error.path.endswith(".max_epochs"):
                raise
            if not self.learns or not self._refused:  # what is learned is refused in each step, if in one
                logger.error("mixing.%s: %s; the weights stay as they are", self.kind, error)
            self._refused = True
        else:
            self._refused = False

    def state(self) -> dict[str, Any]:
        """See run/weights.py."""
        state = self.controller.state()
        try:
            json.dumps(state)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"mixing.{self.kind}: state",
                str(error),
                "plain JSON",
                "return dict, list, str, int or float from the controller's method state",
            ) from error
        return dict(vars(SavedMixing(kind=self.kind, steps=self.steps, state=state, options=self._options)))

    def _check(self, weights: Weights) -> None:
        """Raise ConfigError unless a controller gave every dataset a number of at least 0."""
        for name in sorted({*self.names, *weights}):
            where = f"mixing.{self.kind}: the weight of {name}"
            if name not in self.names:
                raise unknown(where, name, self.names, "dataset")
            if name not in weights:
                raise ConfigError(
                    where,
                    "nothing",
                    "a weight of each dataset",
                    f"return a weight for each dataset from the controller mixing.{self.kind}",
                )
            convert(weights[name], Weight, where)

    def _learnt(self, losses: Weights | None) -> bool:
        """Whether there are losses to learn from. Raises ConfigError if there are none for long."""
        expected = f"the mean loss of each dataset: {self.kind} learns from them"
        if losses is None or not (losses or any(map(self.controller.due, range(self.steps)))):
            raise ConfigError("observe", "no losses", expected, "pass them to loader.observe(...) after each step")
        check_losses(losses, self.names)
        self._without = 0 if losses else self._without + 1
        if self._without == _WITHOUT:
            raise ConfigError(
                "observe",
                f"no losses in {_WITHOUT} steps, up to step {self.steps}",
                expected,
                "call loader.observe(...) after each step",
            )
        if self._without and not self._warned:
            self._warned = True
            logger.warning("mixing.%s: step %d has no losses; the weights stay as they are", self.kind, self.steps)
        return bool(losses)


def _by_dataset(spec: OrderSpec, segment: Segment) -> dict[str, int]:
    return {spec.members[name].dataset: int(weight) for name, weight in segment.weights.items()}
