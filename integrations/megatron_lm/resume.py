"""Whether a configuration may go on from what a checkpoint says about the data. The state itself: progress/state.py."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from conceptloader.errors import ResumeError
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.progress.state import OrderState

logger = logging.getLogger(__name__)

WHERE = "conceptloader's state in the checkpoint"
NO_STATE = "loader"  # the name under which a checkpoint without our state is accepted


def read_state(state: Mapping[str, Any], consumed: int) -> OrderSpec:
    """The order spec of a checkpoint at `consumed` samples.

    Raises ResumeError if it is damaged, of a later release, or of another position.
    """
    saved = OrderState.read(state, WHERE)
    if saved.consumed not in (None, consumed):
        raise ResumeError(
            f"{WHERE}: saved at {saved.consumed} consumed samples, but the run goes on at {consumed}; take the state "
            "and the count from one checkpoint. For a state at another position ask MegatronData.state(consumed)"
        )
    return saved.spec


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
