"""How a run resumes from a checkpoint: with conceptloader's state in it, without one, or as a run of Megatron's own."""

import logging
from argparse import Namespace
from collections.abc import Collection, Mapping
from typing import Any

from conceptloader.errors import ResumeError
from conceptloader.order.progress.resume import ChangedPast, resume
from conceptloader.order.progress.runlog import RunLog
from conceptloader.order.progress.state import OrderState
from conceptloader.run.entry import Entry
from conceptloader.run.training import TrainingRun

from .dataset import STOCK_KEYS
from .megatron_order_reader import StockSplit
from .options import LOG, NO_STATE, ORDER, WHERE

logger = logging.getLogger(__name__)

_LACKS = {"cu_seqlens": "--dataloader-inter-document-masking says it"}
MEGATRON_LM = Entry(
    name="Megatron-LM",
    carries=frozenset({"weights", "losses", "observers", "balance"}),
    keys=frozenset(STOCK_KEYS),
    lacks=_LACKS,
    allow="--conceptloader-allow-changed {words}",
    fix="omit it",
)
OWN_SCRIPT = Entry(
    name="MegatronData",
    keys=frozenset(STOCK_KEYS),
    lacks=_LACKS,
    allow="accept={json}",
    fix="omit it, or start the script with conceptloader.launch, which reports each step",
)
"""Of a script on megatron-core alone."""
EVALUATION = Entry(name="an evaluation in Megatron-LM", fix="omit it: this is no training")


def resume_run(run: TrainingRun, saved: Mapping[str, Any] | None, counted: int, accept: Collection[str]) -> None:
    """Let a run in conceptloader's order stand where Megatron resumes.

    saved: conceptloader's state in the checkpoint. counted: samples that Megatron has consumed.

    Raises ResumeError if what determined the consumed samples has changed, or the state is missing, or does not fit.
    """
    if saved is None:
        if counted and NO_STATE not in accept:
            raise ResumeError(
                "checkpoint",
                f"{counted} consumed samples without a state of conceptloader: another loader chose them",
                "a state",
                f"continue with the samples of Megatron's loader by `order: megatron`, or with sample {counted} of "
                f"this configuration by --conceptloader-allow-changed {NO_STATE}",
            )
        if counted:
            logger.warning("the first %d samples came from another loader, as accepted", counted)
        return
    state = _state_at(saved, counted)
    if state.spec.order == "megatron":
        if ORDER not in accept:
            raise ResumeError(
                "order",
                f"conceptloader's order after {state.consumed} samples of Megatron's own loader",
                "the order of the run so far",
                "keep `order: megatron` and the command line of that run. Where its index files end, continue "
                f"with sample {state.consumed} of conceptloader's order: --conceptloader-allow-changed {ORDER}",
            )
        logger.warning("the first %d samples were Megatron's; conceptloader's may repeat their tokens", state.consumed)
        return
    run.resume(state, WHERE)


def check_migrated(split: StockSplit, saved: Mapping[str, Any] | None, counted: int, accept: Collection[str]) -> int:
    """Samples before those that Megatron counts, of a run with the samples of its own loader. See resume_run."""
    if saved is None:
        if counted:
            logger.info("migrating a run of Megatron's own loader at %d consumed samples", counted)
        return 0
    state = _state_at(saved, counted)
    if state.consumed:
        try:
            resume(state.spec, split.spec, state.consumed, allow_changed=accept)
        except ChangedPast as error:
            raise ResumeError("", error.refusal + MEGATRON_LM.allowing(error.keys)) from error
    return state.count("count_start", WHERE, 0)


def _state_at(saved: Mapping[str, Any], counted: int) -> OrderState:
    """The state of a checkpoint, at the position that Megatron says."""
    state = OrderState.read(saved, WHERE)
    consumed = state.count("count_start", WHERE, 0) + counted
    if state.consumed != consumed:
        raise ResumeError(
            WHERE,
            f"a state of {state.consumed} consumed samples",
            f"{consumed}, at which the run resumes",
            "pass MegatronData.state(consumed) the count of the same checkpoint, or load both from one",
        )
    return state


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
            position = begun + consumed
            spec = log.spec_at(before[-1], position).cut(position)
            return OrderState(spec=spec, consumed=position, more={"count_start": begun}).leaf()
        if before:
            raise ResumeError(
                "checkpoint",
                f"{consumed} consumed samples without a state of conceptloader",
                f"a state, as {log.path} says that conceptloader gave those from {before[0].consumed} on",
                "if the state was lost, as by converting the checkpoint, resume by the run log: "
                f"--conceptloader-allow-changed {LOG}; if another loader has begun a new run since, move the log away",
            )
    return None
