"""What a checkpoint says about the data, and whether a configuration may go on from it."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from conceptloader.errors import ResumeError
from conceptloader.order.spec import OrderSpec

logger = logging.getLogger(__name__)

STATE_VERSION = 1
NO_STATE = "loader"  # the name under which a checkpoint without our state is accepted


def make_state(spec: OrderSpec, consumed: int | None = None) -> dict[str, Any]:
    """Plain data for a checkpoint; `consumed` is left out where Megatron's arguments say it."""
    state: dict[str, Any] = {"version": STATE_VERSION, "spec_hash": spec.hash, "spec": spec.to_dict()}
    return state if consumed is None else {**state, "consumed_samples": consumed}


def read_state(state: Mapping[str, Any]) -> OrderSpec:
    """The order spec of a checkpoint. Raises ResumeError if it is damaged or of a later release."""
    if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION or "spec" not in state:
        found = state.get("version") if isinstance(state, Mapping) else type(state).__name__
        raise ResumeError(f"conceptloader's state in the checkpoint: found version {found}, expected {STATE_VERSION}")
    spec = OrderSpec.from_dict(state["spec"])
    if spec.hash != state.get("spec_hash"):
        raise ResumeError(
            f"conceptloader's state in the checkpoint: spec_hash {state.get('spec_hash')} is not that of its spec, "
            f"{spec.hash}; it was edited: take another checkpoint"
        )
    return spec


def expect_no_past(current: OrderSpec, consumed: int, accept: Collection[str]) -> None:
    """For a checkpoint without our state. Raises ResumeError if samples were consumed, unless that is meant.

    `order: megatron` is meant to go on from a checkpoint of Megatron's own loader.
    """
    if not consumed:
        return
    if current.order == "megatron":
        logger.info("taking over a run of Megatron's own loader at %d consumed samples", consumed)
    elif NO_STATE in accept:
        logger.warning("the first %d samples came from another loader, as accepted", consumed)
    else:
        raise ResumeError(
            f"checkpoint: found {consumed} consumed samples without a state of conceptloader, so another loader chose "
            "them; expected one of ours. To go on with the samples of Megatron's loader use `order: megatron`; "
            f"to go on with sample {consumed} of this configuration, accept the difference by its name, {NO_STATE}"
        )
