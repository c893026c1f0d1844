"""Weights that are set mid-run: from which sample on, and what sets them while the run lives."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from conceptloader.base.strict import unknown
from conceptloader.config import Blend
from conceptloader.config.add_ons import add_on
from conceptloader.order.partition import Plan
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.segments import Segment
from conceptloader.order.weights import exact_weights
from conceptloader.run.entry import Entry
from conceptloader.run.ranks import Ranks

Weights = Mapping[str, float]


class Mixing(Protocol):
    """What sets the weights of a run while it lives, the same on all of its ranks: what carries out the key `mixing`.

    `resumed(blend, saved, allow)` of its module makes it, with the state that a checkpoint has, if any; None for a
    configuration without the section. It raises ResumeError for a state that does not fit, with `allow` as what the
    message recommends; without `allow` it begins again.

    Attributes:
        kind: Of the controller, as the configuration names it.
        learns: From losses; else trainers need not compute any.
        due: Whether it decides after this step. After others it is given nothing, and ranks do not communicate.
    """

    kind: str
    learns: bool
    due: bool

    def hear(self, losses: Weights | None, ranks: Ranks) -> Any:
        """What it decides by, as JSON on all ranks, each of which calls this where it is due: the losses, if it learns.

        It raises nothing, since others may wait: a comparison follows.

        Args:
            losses: Mean loss of each dataset in the step, over all ranks.
            ranks: Of the run.
        """

    def decide(self, blend: Blend, heard: Any) -> Weights | None:
        """The weights to be set after a step; None if they are in force. Called on a copy, which is then kept.

        Raises: ConfigError for losses that are missing or wrong, and weights that cannot be set.
        """

    def apply(self, weights: Weights, set_weights: Callable[[Weights], Any]) -> None:
        """Set these weights, once all ranks have decided the same, or log why they cannot be set."""

    def state(self) -> dict[str, Any]:
        """Plain JSON, for a checkpoint, equal on all ranks."""


def open_mixing(blend: Blend, entry: Entry, saved: Any, allow: str | None = None) -> Mixing | None:
    """What sets the weights of a run, if anything does; see Mixing.

    Raises: ConfigError for what the entry does not carry out; ResumeError.
    """
    if blend.config.mixing is None and saved is None:
        return None
    mixing: Mixing | None = add_on("mixing").resumed(blend, saved, allow)
    if mixing is not None and mixing.learns:
        entry.need(f"mixing.{mixing.kind}", "losses", "which is given no losses to learn from")
    return mixing


def next_border(plan: Plan, edge: int, spec: OrderSpec) -> int:
    """The first sample of a step from `edge` on, after all weights that were set earlier.

    No phase of the configuration starts there.
    """
    starts = {one.at for one in spec.planned if one.weights and not one.ramp}
    while True:
        first, last = plan.schedule.range_of(plan.schedule.step_of(max(edge, plan.schedule.consumed)))
        border = first if first == edge else last
        if border not in starts and (not spec.live or border > spec.live[-1].at):
            return border
        edge = border + 1


def with_weights(
    blend: Blend, weights: Weights, at: int, consumed: int = 0, why: str = "", losses: Weights | None = None
) -> Blend:
    """With other weights from the trainer's sample `at` on, until the next phase of the configuration.

    consumed: samples whose order need not be known any more. why: they are set. losses: that they are made of.

    Raises: ConfigError for datasets that are unknown or absent, and invalid weights.
    """
    keys = {
        view.name: key
        for key, view in zip(blend.spec.members, blend.views, strict=True)
        if view is not None and view.member.seq_len in (None, blend.config.seq_len)
    }
    for name in weights:
        if name not in keys:
            raise unknown(f"weights.{name}", name, keys, "dataset")
    exact_weights(weights, "weights")
    named = {keys[name]: weight for name, weight in weights.items()}
    return blend.with_live(Segment(at=at, weights=named, why=why, losses=dict(losses or {})), consumed)
