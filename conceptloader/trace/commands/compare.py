"""What `conceptloader trace --compare` shows: steps that another configuration changes, and where to start again."""

import argparse
from itertools import groupby
from typing import Any

from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError
from conceptloader.order.progress.resume import ChangedPast
from conceptloader.trace import Checkpoint, Run, differing_steps, open_other
from conceptloader.trace.checkpoints import check_continuous, last_before
from conceptloader.trace.commands.runs import checkpoints_of, open_run


def show_comparison(arguments: argparse.Namespace, output: Output) -> None:
    """Raises ConfigError without an end of the run, which is --until or the newest checkpoint."""
    asked = open_run(arguments)
    check_continuous(asked)
    checkpoints, skipped = checkpoints_of(asked, arguments)
    stop = arguments.until or (checkpoints[-1].step if checkpoints else None)
    if stop is None:
        raise ConfigError(
            "--compare", "no end of the run", "--until or --checkpoints", "add --until STEP, or --checkpoints DIR"
        )
    other = open_other(asked, arguments.compare)
    steps = list(differing_steps(asked, other, stop))
    value: dict[str, Any] = {"steps": steps, "until": stop}
    lines = [f"{len(steps):,} of {stop - asked.steps.segments[0].start.step:,} steps differ" + _shown(steps)]
    if checkpoints:
        first = asked.steps.range_of(steps[0] if steps else stop)[0]
        start = last_before(checkpoints, first)
        value |= {"checkpoint": start and start.to_dict(), "skipped": skipped}
        lines.append("no checkpoint was saved before the first of them" if start is None else _start(other, start))
        lines += [f"skipped: {why}" for why in skipped.values()]
    output.result(value, lines)


def _start(other: Run, start: Checkpoint) -> str:
    """What the user has to know to resume there."""
    line = f"{start.path} is the last checkpoint before the first of them, at sample {start.consumed:,}"
    try:
        other.blend.resume(start.spec, start.consumed)
    except ChangedPast as error:
        return f"{line}; a resume there must allow {', '.join(error.keys)} to change (allow_changed)"
    return line


def _shown(steps: list[int]) -> str:
    """Runs of steps: 50, 82-90."""
    runs = [[step for _, step in run] for _, run in groupby(enumerate(steps), lambda pair: pair[1] - pair[0])]
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    more = f" and {len(texts) - 50:,} more runs of steps" if texts[50:] else ""
    return f": {', '.join(texts[:50])}{more}" if texts else ""
