"""Weights that are set while a run is going: from which sample on, and whether all ranks mean the same."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from conceptloader.base.checks import as_count
from conceptloader.base.hashing import fingerprint
from conceptloader.errors import ConfigError
from conceptloader.order.partition import Plan
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.skips import Skips


def start_of_weights(plan: Plan, edge: int, spec: OrderSpec, at: int | None) -> int:
    """`at`, or else the first sample of a step from `edge` on, behind all weights that were set before.

    Raises: ConfigError for a sample before `edge`, which may have been read ahead.
    """
    if at is not None:
        if as_count(at, "at", 0) < edge:
            raise ConfigError(
                f"set_weights: at: found {at}, expected at least {edge}: samples before it may have been read ahead"
            )
        return at
    skips = Skips(spec.skips)
    while True:
        first, last = plan.schedule.range_of(plan.schedule.step_of(max(edge, plan.schedule.consumed)))
        border = first if first == edge else last
        if not spec.live or skips.global_index(border) > spec.live[-1]:
            return border
        edge = border + 1


def require_agreement(facts: Mapping[str, Any], dp_size: int, group: Any) -> None:
    """Raises: ConfigError on every rank unless all of them have the same facts. Does nothing without a process group.

    A digest is compared; the facts of those that differ are in the message.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    size = dist.get_world_size(group)
    if size != dp_size:
        raise ConfigError(
            f"set_weights: found {size} processes in the group and dp_size {dp_size}, expected as many; give group=, "
            "that of the data-parallel ranks, or agree=False, and compare state_dict() of the ranks yourself"
        )
    mine = (fingerprint(dict(facts)), dict(facts))
    found: list[Any] = [None] * size
    dist.all_gather_object(found, mine, group)
    if len({digest for digest, _ in found}) > 1:
        listed = "\n".join(f"  rank {rank}: {one}" for rank, (_, one) in enumerate(found))
        raise ConfigError(
            f"set_weights: ranks differ, expected the same call on all of them; nothing was set:\n{listed}"
        )
