"""The checkpoint state: which order, and how far in it. One form for the loader and every adapter, checked in full.

How it is compared with the present order is in resume.py.

Saved as one string under one key. torch.distributed.checkpoint loads leaf by leaf into the keys that the *new* object
has: of a nested state a changed order would take what it knows and lose the rest, so that nothing is left to refuse.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from conceptloader.base.checks import as_count
from conceptloader.base.hashing import canonical_json, fingerprint
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.progress.spec import SAVED_VERSION, OrderSpec

KEY = "conceptloader"

Plain = dict[str, Any]
Default = TypeVar("Default", int, None)
_MORE = (
    "step_start",
    "step",
    "count_start",
    "mixing",
    "dealt",
    "data_stage",
    "data_stage_start",
)  # the last two are of nanotron
_ELSEWHERE = "pass load_state_dict the state of another checkpoint; Loader.state_dict_at gives that of another position"


def sealed(fields: Mapping[str, Any]) -> Plain:
    """`fields` with the version, and a checksum over all of them."""
    fields = {"version": SAVED_VERSION, **fields}
    return {**fields, "checksum": fingerprint(fields)}


def as_leaf(fields: Mapping[str, Any]) -> dict[str, str]:
    """`fields` with both, as one string of JSON under one key."""
    return {KEY: canonical_json(sealed(fields))}


def unsealed(state: Any, where: str, kind: str = "loader") -> Plain:
    """The fields of a state, as a leaf or as plain data, without version and checksum. kind: whose it should be.

    Raises ResumeError if the state is no object with the version that is known here, does not have the checksum of what
    it says, or is that of another kind.
    """
    if isinstance(state, Mapping) and isinstance(state.get(KEY), str):
        try:
            state = json.loads(state[KEY])
        except (ValueError, RecursionError) as error:
            raise ResumeError(where, f"a corrupt state ({error})", "the state as it was saved", _ELSEWHERE) from error
    version = state.get("version") if isinstance(state, Mapping) else None
    if type(version) is not int or version != SAVED_VERSION:
        found, fix = _stranger(state)
        raise ResumeError(where, str(found), f"a state of version {SAVED_VERSION}", fix)
    fields = {key: value for key, value in state.items() if key != "checksum"}
    if _fingerprint(fields, where) != state.get("checksum"):
        raise ResumeError(
            where,
            f"a state that is corrupt, or was edited: its checksum, {state.get('checksum')!r}, is of other content",
            "the state as it was saved",
            _ELSEWHERE,
        )
    marks = {"spec": "loader", "consumed": "sampler's iterator", "epoch": "sampler"}
    del fields["version"]
    found = next((marks[key] for key in marks if key in fields), kind)
    if found != kind:
        raise ResumeError(
            where,
            f"the state of a {found}",
            f"the state of a {kind}",
            "pass the state of each to its own load_state_dict",
        )
    return fields


def _stranger(state: Any) -> tuple[str, str]:
    """(what is no state, what to do)."""
    if isinstance(state, str):
        return f"the string {state[:40]!r}", "load the checkpoint, and give the dict that state_dict() returned"
    if not isinstance(state, Mapping):
        return type(state).__name__, "give the dict that state_dict() returned"
    if "version" in state:
        fix = "resume with the release of conceptloader that saved it; or, where the order is the same, begin at its "
        return f"version {state['version']!r}", f"{fix}sample: pass consumed_samples, and no state"
    inside = next((key for key, value in state.items() if isinstance(value, Mapping) and KEY in value), None)
    fix = "pass what conceptloader's own state_dict() returned" if inside is None else f"pass its {inside!r}"
    return f"a dict with {', '.join(map(repr, islice(state, 3))) or 'nothing'}", fix


@dataclass(frozen=True, kw_only=True)
class OrderState:
    """What a checkpoint keeps of a run's data.

    spec: the order from sample 0 of the run on. consumed: how many samples of it are consumed, over all ranks. more:
    step_start, where the step began; step, the trainer's number of it; count_start, samples of the run before those
    that this trainer counts; mixing, that of its controller; and what nanotron keeps.
    """

    spec: OrderSpec
    consumed: int
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "consumed", as_count(self.consumed, "consumed_samples", 0))

    def fields(self) -> Plain:
        """Plain JSON, without version and checksum."""
        return {"spec": self.spec.to_dict(), "consumed_samples": self.consumed, **self.more}

    def leaf(self) -> dict[str, str]:
        """What to save with a checkpoint."""
        return as_leaf(self.fields())

    @classmethod
    def read(cls, state: Any, where: str) -> "OrderState":
        """A state as a leaf or as plain data. where: what it is, for messages.

        Raises ResumeError if it is corrupt, was edited, has other keys, or is of another version.
        """
        fields = unsealed(state, where)
        if unknown := sorted(fields.keys() - {"spec", "consumed_samples", *_MORE}):
            raise ResumeError(where, f"the keys {unknown} as well", f"no keys but {_MORE}", _ELSEWHERE)
        try:
            spec = OrderSpec.from_dict(fields.get("spec"))
        except ResumeError as error:
            raise error.within(where) from error
        return cls(
            spec=spec,
            consumed=saved_count(fields, "consumed_samples", where),
            more={key: fields[key] for key in _MORE if key in fields},
        )

    def between_steps(self, where: str) -> int:
        """Consumed samples. Raises ResumeError if it was saved within a step, whose gradients are lost."""
        begun = self.count("step_start", where, self.consumed)
        if begun != self.consumed:
            raise ResumeError(
                where,
                f"a state saved at {self.consumed} samples, within the step that began at {begun}: the gradients "
                "of the samples between are lost",
                "a state between two steps",
                "pass load_state_dict the state of a checkpoint between two steps",
            )
        return self.consumed

    def count(self, key: str, where: str, default: Default) -> int | Default:
        """A number among `more`. Raises ResumeError if it is none."""
        return saved_count(self.more, key, where) if key in self.more else default


def saved_count(fields: Mapping[str, Any], key: str, where: str) -> int:
    """A number of samples, or of epochs, in a state. Raises ResumeError if it is none."""
    try:
        return as_count(fields.get(key), key, 0)
    except ConfigError as error:
        raise ResumeError(where, f"a corrupt state ({error})", "the state as it was saved", _ELSEWHERE) from error


def _fingerprint(value: Any, where: str) -> str:
    try:
        return fingerprint(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ResumeError(where, f"a corrupt state ({error})", "the state as it was saved", _ELSEWHERE) from error
