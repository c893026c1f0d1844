"""Mixing in frameworks whose pipeline stages do not all compute the loss."""

import json
from functools import partial

from conceptloader.base.hashing import canonical_json
from conceptloader.batch.mixing import Mixing
from conceptloader.batch.reweight import next_border
from conceptloader.blend import Blend
from conceptloader.mixing.controller import Weights
from conceptloader.order.partition import Plan
from conceptloader.order.skips import Skips
from conceptloader.torch.agreement import from_first, require_same, told


def decide_together(
    mixing: Mixing, blend: Blend, losses: Weights | None, plan: Plan, edge: int
) -> tuple[Weights | None, Weights | None]:
    """(weights to be set after a step, None if they are in force; the losses), on all processes. See Mixing.decide.

    Args:
        mixing: Of the run.
        blend: Of the run.
        losses: Mean loss of each dataset in the step, on one rank; None on the others.
        plan: Steps of the run.
        edge: Before this sample anything may have been read.

    Raises:
        ConfigError: Also if ranks differ.
    """
    if mixing.controller is None:
        losses = None
    else:
        losses = json.loads(told("losses of datasets", None if losses is None else canonical_json(losses)))
    at = next_border(plan, edge, blend.spec)
    sample = Skips(blend.spec.skips).global_index(at)
    weights = mixing.decide(blend, losses, sample, partial(from_first, "mixing"))
    require_same("observe", {"mixing": mixing.kind, "at": at, "losses": losses, "weights": weights})
    return weights, losses
