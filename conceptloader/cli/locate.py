"""The command `conceptloader locate`."""

import argparse
import itertools
import logging
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import yaml

from conceptloader.base.arguments import not_negative, positive, read_ids, refuse_beside
from conceptloader.base.terminal import counted, printable
from conceptloader.cli.output import Output, table
from conceptloader.cli.runs import CONFIG, add_run_arguments, open_run
from conceptloader.errors import ConfigError
from conceptloader.order.progress.runlog import EARLIER
from conceptloader.trace import Run, Sighting, locate_documents, locate_where

logger = logging.getLogger(__name__)

DESCRIPTION = """\
Find the steps that contain documents or concepts, past or future. They are computed: the run is not scanned.

  conceptloader locate --run-log checkpoints --document asyncio.events --samples 1000000
  conceptloader locate --run-log checkpoints --where "'FunctionDef' in concepts" --limit 20

Numbers of tokens are shown, as inputs and as labels: the last token of a window is only a label, the first only an
input. `trace --sample` shows where they are.

With an index of the track (conceptloader index) only spans of the concept are read; without one, the whole track.

Without --samples, the length of the run, only the first epoch of each dataset is searched. Without a run log or
--global-batch-size, samples are shown without steps.

For documents and --samples, also what to paste into the configuration to train without them, and from which checkpoints
to resume with it. --check then shows that the run has none of them: exit code 1 if any step reads one, as recorded in
the run log, or later as the last launch plans it. Limits: docs/removal.md.

  conceptloader locate --run-log checkpoints --documents optouts.txt --samples 1000000
  conceptloader locate --run-log resumed --documents optouts.txt --samples 1000000 --check
"""

_PLACE = "sample", "step", "micro batch", "rank", "slot"
_HEADER = *_PLACE, "dataset", "epoch", "window", "inputs", "labels", "document"
_NOT_CHECKED = "where", "document_number", "dataset", "limit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help=CONFIG, nargs="?")
    add_run_arguments(parser)
    what = parser.add_mutually_exclusive_group(required=True).add_argument
    what("--document", metavar="ID", help="a document, by its id")
    what("--documents", metavar="FILE", help="documents, by their ids, one per line")
    what("--document-number", type=not_negative, metavar="N", help="a document, by its number in --dataset")
    meaning = "tokens for which this is true, such as \"'animal' in concepts and 'red wine' not in concepts\""
    what("--where", metavar="SQL", help=meaning)
    add = parser.add_argument
    add("--dataset", metavar="NAME", help="only this dataset")
    add("--samples", type=positive, metavar="N", help="length of the run in samples, over all ranks")
    add("--limit", type=positive, metavar="N", help="only the first N results")
    add("--check", action="store_true", help="exit code 1 if any step of the run reads one of the documents")


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.check:
        refuse_beside("--check", arguments, *_NOT_CHECKED)
    asked, samples = open_run(arguments), arguments.samples
    if arguments.check:
        samples = _length(asked, samples)
    if samples is None:
        logger.warning("only the first epoch of each dataset is searched; pass the length of the run: --samples")
    if arguments.where is not None:
        found = locate_where(asked, arguments.where, samples, arguments.dataset)
    else:
        found = locate_documents(asked, _documents(asked, arguments), samples, arguments.dataset)
    seen = sorted(itertools.islice(found, arguments.limit), key=lambda one: one.sample)
    value: dict[str, Any] = {"samples": samples, "seen": [one.to_dict() for one in seen]}
    lines = table([_row(one) for one in seen], _HEADER)
    if not all(one.places for one in seen):
        known = "give --run-log, or --global-batch-size, --micro-batch-size and --dp-size"
        after = "the launches of the run log end before, or have no step there"
        lines.append(f"? is not known: {known if asked.history is None else after}")
    if seen and samples is not None and arguments.where is None:
        consumed, steps = _before(asked, seen[0])
        value |= {"before": consumed, "exclude": [_entry(asked.at(seen[0].sample), arguments, consumed)]}
        lines.append(f"to train without: resume from the last checkpoint of at most {consumed:,} samples{steps}, with")
        lines += yaml.safe_dump({"exclude": value["exclude"]}, sort_keys=False).splitlines()
    if arguments.check and not seen:
        stages = [] if asked.history is None else [one.start.data_stage for one in asked.history.launches]
        of = "".join(f", data stage {printable(name)}" for name in dict.fromkeys(filter(None, stages)))
        lines.append(f"none of the documents is in the first {samples:,} samples{of}")
    output.result(value, lines)
    return int(arguments.check and bool(seen))


def _documents(asked: Run, arguments: argparse.Namespace) -> Sequence[str | int]:
    """Those that are asked for, by id or number. Raises: ConfigError for ids that no dataset has."""
    if arguments.documents is None:
        return [one for one in (arguments.document, arguments.document_number) if one is not None]
    ids = read_ids("--documents", arguments.documents)
    found = [dataset.find_documents(ids) for dataset in asked.datasets.values()]
    unknown = [one for one in ids if not any(having[one] for having in found)]
    if unknown or not ids:
        raise ConfigError(
            "--documents",
            f"{len(unknown):,} of {len(ids):,} ids that no dataset has" + ", such as " * bool(unknown)
            + ", ".join(map(repr, unknown[:5])),
            "ids as in the input",
            f"correct them, or remove them from {arguments.documents}",
        )  # fmt: skip
    return ids


def _length(asked: Run, samples: int | None) -> int:
    """How many samples --check looks at: all of the run.

    Raises: ConfigError if the length is not known, or the log lacks the beginning or has gaps.
    """
    stop: int | None = None
    trained = 0
    if asked.history is not None:
        segments = asked.history.launches
        first, last = segments[0].start, segments[-1].start
        if first.step or first.consumed:
            found = f"step {first.step} at sample {first.consumed} first: what was read before is not known"
            raise ConfigError("run log", found, "a run log from the first step on", EARLIER)
        for before, after in pairwise(segments):
            step, consumed = after.start.step, after.start.consumed
            expected = before.plan.consumed_at(step)
            if consumed != expected:
                raise ConfigError(
                    f"run log: step {step}",
                    f"a start at sample {consumed}",
                    f"sample {expected}, where the launch before it ends: samples were repeated or passed over, steps "
                    "were trained by another loader, the log was edited, or two runs share it",
                    "restore the run log from a copy, or pass that of one run",
                )
        stop, trained = last.plan.stop, last.consumed
    length, least = stop if samples is None else samples, max(trained, stop or 0)
    if length is None or length < least:
        found, known = "nothing" if samples is None else str(samples), f", {least} or more by the run log" * (least > 0)
        raise ConfigError("--samples", found, f"the length of the run{known}", "pass --samples N")
    return length


def _before(asked: Run, first: Sighting) -> tuple[int, str]:
    """(samples, steps in words) that may be consumed before the first sample that is read of a document."""
    if not first.places:
        return first.sample, ""
    step = min(place.step for place in first.places)
    return min(first.sample, asked.steps.range_of(step)[0]), f" ({counted(step, 'step')})"


def _entry(era: Run, arguments: argparse.Namespace, at: int) -> dict[str, Any]:
    """Of the section `exclude`: the documents that are asked for, from a sample on. era: that read them first."""
    if arguments.documents is not None:
        which: dict[str, Any] = {"file": os.path.abspath(arguments.documents).replace("${", "$${")}
    elif arguments.document is not None:
        which = {"ids": [arguments.document]}
    else:
        which = {"tokens": list(era.blend.datasets[arguments.dataset].document_range(arguments.document_number))}
    return {"at": at, **({"dataset": arguments.dataset} if arguments.dataset else {}), **which, "take": "own"}


def _row(one: Sighting) -> list[object]:
    place: list[Any] = list(one.places[0]) if one.places else ["?"] * 4
    name = one.document if one.id is None else one.id
    row = [one.sample, *place, one.dataset, one.epoch, one.window, one.inputs, one.labels]
    return [*row, "-" if name is None else name]
