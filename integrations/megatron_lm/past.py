"""How a run resumes from a checkpoint: with conceptloader's state in it, without one, or as a run of Megatron's own."""

import logging
from argparse import Namespace
from collections.abc import Collection, Mapping
from typing import Any

from conceptloader.batch.mixing import Mixing
from conceptloader.errors import ResumeError
from conceptloader.order.progress.found import to_continue
from conceptloader.order.progress.resume import ChangedPast
from conceptloader.order.progress.runlog import RunLog
from conceptloader.order.progress.state import OrderState

from .options import LOG, NO_STATE, ORDER, WHERE
from .splits import OurSplit
from .takeover_reader import StockSplit

logger = logging.getLogger(__name__)

SampleSource = OurSplit | StockSplit


def continued(
    split: SampleSource,
    saved: Mapping[str, Any] | None,
    counted: int,
    accept: Collection[str],
    continue_from: str | None,
) -> tuple[SampleSource, int]:
    """The split with which a run resumes from a checkpoint, and the samples of it that Megatron does not count.

    saved: conceptloader's state in it, None in a checkpoint of Megatron's own loader (`order: megatron`). counted:
    samples that Megatron has consumed. continue_from: checkpoint of another trainer, whose run begins here.

    Raises ResumeError if what decided the consumed samples has changed, or the state is missing, or does not fit.
    """
    state = None
    if saved is not None:
        state = OrderState.read(saved, WHERE)
    elif continue_from is not None and not counted:
        state = to_continue(continue_from)
    start = 0 if state is None else state.count("count_start", WHERE, 0)
    consumed = start + counted
    return (_resumed(split, state, consumed, accept) if consumed else split), start


def mixing_of(split: SampleSource, saved: Mapping[str, Any] | None, accept: Collection[str]) -> Mixing | None:
    """What sets weights while the run lives. See `continued`. Raises ResumeError for a state of another controller."""
    if isinstance(split, StockSplit):
        return None
    if saved is None:
        return Mixing.begun(split.blend)
    return Mixing.resumed(split.blend, OrderState.read(saved, WHERE).more.get("mixing"), "mixing" in accept)


def _resumed(split: SampleSource, state: OrderState | None, consumed: int, accept: Collection[str]) -> SampleSource:
    if state is not None:
        if state.consumed not in (None, consumed):
            raise ResumeError(
                WHERE,
                f"saved at {state.consumed} consumed samples, but the run resumes at {consumed}",
                fix="take the state and the count from one checkpoint, or ask for another one: "
                "MegatronData.state(consumed)",
            )
        if state.spec.order == "megatron" != split.spec.order:
            if ORDER not in accept:
                raise ResumeError(
                    "order",
                    f"the first {consumed} samples were those of Megatron's own loader, and the configuration has "
                    "conceptloader's order",
                    fix="keep `order: megatron` and the command line of that run. Where its index files end, continue "
                    f"with sample {consumed} of conceptloader's order: --conceptloader-allow-changed {ORDER}",
                )
            logger.warning("the first %d samples were Megatron's; conceptloader's may repeat their tokens", consumed)
            return split
        try:
            return split.resumed(state.spec, consumed, accept)
        except ChangedPast as error:
            raise ResumeError("", f"{error.refusal}--conceptloader-allow-changed {' '.join(error.keys)}") from error
    if split.spec.order == "megatron":
        logger.info("migrating a run of Megatron's own loader at %d consumed samples", consumed)
    elif NO_STATE in accept:
        logger.warning("the first %d samples came from another loader, as accepted", consumed)
    else:
        raise ResumeError(
            "checkpoint",
            f"found {consumed} consumed samples without a state of conceptloader, so another loader chose them",
            fix=f"continue with the samples of Megatron's loader by `order: megatron`, or with sample {consumed} of "
            f"this configuration by --conceptloader-allow-changed {NO_STATE}",
        )
    return split


def saved_in_log(args: Namespace, accept: Collection[str]) -> dict[str, str] | None:
    """The state for a checkpoint without conceptloader's: None where another loader trained all of its samples.

    A run log next to the checkpoints that begins earlier contradicts that. Its state may be accepted by the name LOG.
    Raises ResumeError if it is not, nor NO_STATE.
    """
    consumed = args.consumed_train_samples
    if NO_STATE in accept:
        return None
    for folder in filter(None, dict.fromkeys((args.load, args.save))):
        log = RunLog(folder)
        begun = next((start.consumed for start in log.starts[:1] if not start.step), 0)  # where Megatron's count began
        before = [start for start in log.starts if start.consumed < begun + consumed]
        if before and LOG in accept:
            return OrderState(spec=log.spec_at(before[-1], begun + consumed), more={"count_start": begun}).leaf()
        if before:
            raise ResumeError(
                "checkpoint",
                f"found {consumed} consumed samples without a state of conceptloader, but {log.path} says that it "
                f"gave those from {before[0].consumed} on",
                fix="if the state was lost, as by converting the checkpoint, resume by the run log: "
                f"--conceptloader-allow-changed {LOG}; if another loader has begun a new run since, move the log away",
            )
    return None
