"""The checkpoints of a run in a directory of any trainer: which of them the run can start again from."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.progress.found import NoState, locate_state
from conceptloader.order.progress.resume import resume
from conceptloader.order.progress.runlog import FILE_NAME
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.trace.run import Run


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One that holds a position of the run, between two steps.

    Attributes:
        path: Directory or file.
        consumed: Samples of the run before it, over all ranks.
        step: The step that follows it; None where the run log does not reach.
        spec: The order that it was saved with.
    """

    path: str
    consumed: int
    step: int | None
    spec: OrderSpec

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, without the order."""
        return {"path": self.path, "consumed_samples": self.consumed, "step": self.step}


def find_checkpoints(
    run: Run, directory: str | os.PathLike[str], logged: bool = True
) -> tuple[list[Checkpoint], dict[str, str]]:
    """The checkpoints of a run among the entries of a directory: iter_0001000, step-1000, 1000, step-1000.pt.

    Args:
        run: The run, see `open_run`.
        directory: Where the trainer saves them.
        logged: Whether the steps of the run are those of a run log, with the times of its launches.

    Returns:
        Those from which the run could resume as it was, by position; and path -> why for those with a state from which
        it could not: of another run, of a branch that the run has left, corrupt, within a step.

    Raises:
        ResumeError: If there is none of the first kind.
    """
    try:
        paths = sorted(path for path in Path(directory).iterdir() if path.name != FILE_NAME)
    except OSError as error:
        raise ConfigError(
            "checkpoints", f"{directory}: {error.strerror}", "the directory of checkpoints", f"run `ls -ld {directory}`"
        ) from error
    found, skipped = list[Checkpoint](), dict[str, str]()
    for path in paths:
        try:
            found.append(_checkpoint(run, path, logged))
        except NoState:
            continue
        except (ConfigError, ResumeError, OSError) as error:
            skipped[str(path)] = str(error)
    if not found:
        listed = "".join(f"\n  {why}" for why in skipped.values())
        raise ResumeError(
            str(directory),
            f"no checkpoint from which this run can resume among its {len(paths)} entries{listed}",
            "the checkpoints of this run",
            "give the directory that the trainer saved to, and the configuration and run log of that run",
        )
    return sorted(found, key=lambda one: one.consumed), skipped


def last_before(checkpoints: Sequence[Checkpoint], sample: int) -> Checkpoint | None:
    """The last one that was saved before a sample was trained."""
    return next((one for one in reversed(checkpoints) if one.consumed <= sample), None)


def check_continuous(run: Run) -> None:
    """Raise ResumeError if a launch does not begin where the one before it ended: positions would mean two things."""
    for before, after in pairwise(() if run.history is None else run.history.segments):
        step, consumed = after.start.step, after.start.consumed
        expected = before.plan.consumed_at(step)
        if consumed != expected:
            raise ResumeError(
                f"run log: step {step}",
                f"a start at sample {consumed}",
                f"sample {expected}, where the launch before it ends: samples were repeated or passed "
                "over, the log was edited, or two runs share it",
                "put the log back from a copy, or omit --run-log: the answer then names samples, and no steps",
            )


def _checkpoint(run: Run, path: Path, logged: bool) -> Checkpoint:
    """Raises ResumeError if the run cannot resume from it."""
    file, state = locate_state(path)
    where, consumed = str(path), state.between_steps(str(path))
    whole = run.at(consumed - (consumed > run.begin)).whole_order
    try:
        planned = tuple(phase for phase in whole.phases if phase.start not in whole.live)
        resume(state.spec, replace(whole, phases=planned, live=()) if whole.live else whole, consumed)
    except ResumeError as error:
        raise error.within(where) from error
    known, decided = {phase.start: phase for phase in whole.phases}, state.spec.decided(consumed)
    for phase in state.spec.deciding if logged else ():
        if phase.start < decided and known.get(phase.start) != phase:
            raise ResumeError(
                where,
                f"weights set live at global sample {phase.start}",
                "weights that the run log has",
                "give the run log of this run",
            )
    step = None
    segments = () if run.history is None else run.history.segments
    segment = next((one for one in reversed(segments) if one.start.consumed < consumed), None)
    if segment is not None:
        start, plan = segment.start, segment.plan
        step = plan.schedule.step_of(consumed)
        step += plan.consumed_at(step) < consumed == plan.stop  # the end of a last batch that is not full
        if plan.consumed_at(step) != consumed or state.more.get("step", step) != step:
            raise ResumeError(
                where,
                f"step {state.more.get('step', 'unknown')} at {consumed} samples",
                f"step {step} at {plan.consumed_at(step)} samples, as the run log says",
                "it is of another run or branch, or the log was edited",
            )
        if logged and file.stat().st_mtime < datetime.fromisoformat(start.time).timestamp():
            raise ResumeError(
                where,
                f"a checkpoint older than the launch of step {start.step} ({start.time}), from which "
                "the run came to this position",
                "a checkpoint of this branch of the run",
                "it is of another run, or of a branch that the run has left",
            )
    return Checkpoint(path=where, consumed=consumed, step=step, spec=state.spec)
