"""Weights that are set mid-run: from which sample on."""

from collections.abc import Mapping

from conceptloader.base.checks import as_count
from conceptloader.base.strict import unknown
from conceptloader.blend import Blend
from conceptloader.errors import ConfigError
from conceptloader.order.partition import Plan
from conceptloader.order.phases import Phase
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.skips import Skips


def new_weights(
    blend: Blend, weights: Mapping[str, float], plan: Plan, edge: int, at: int | None, consumed: int
) -> tuple[int, Blend]:
    """(sample from which on they hold, the blend with them), which knows the order from `consumed` samples on.

    edge: before it anything may have been yielded.

    Raises: ConfigError, see `Loader.set_weights`.
    """
    if at is None:
        at = next_border(plan, edge, blend.spec)
    elif as_count(at, "at", 0) < edge:
        raise ConfigError("set_weights: at", str(at), f"at least {edge}: samples before it have been yielded")
    return at, with_weights(blend, weights, at, consumed)


def next_border(plan: Plan, edge: int, spec: OrderSpec) -> int:
    """The first sample of a step from `edge` on, after all weights that were set earlier.

    No phase of the configuration starts there.
    """
    skips, starts = Skips(spec.skips), {phase.start for phase in spec.phases if spec.ramp_at(phase.start) is None}
    while True:
        first, last = plan.schedule.range_of(plan.schedule.step_of(max(edge, plan.schedule.consumed)))
        border = first if first == edge else last
        start = skips.global_index(border)
        if start not in starts and (not spec.live or start > spec.live[-1]):
            return border
        edge = border + 1


def with_weights(blend: Blend, weights: Mapping[str, float], at: int, consumed: int = 0) -> Blend:
    """With other weights from the trainer's sample `at` on, until the next phase of the configuration.

    consumed: samples whose order need not be known any more.

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
    start = Skips(blend.spec.skips).global_index(at)
    phase = Phase(start=start, weights={keys[name]: w for name, w in weights.items()})
    return blend.with_phase(phase, consumed)
