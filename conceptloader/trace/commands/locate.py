"""The command `conceptloader locate`."""

import argparse
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from conceptloader.cli.arguments import not_negative, positive, refuse_beside
from conceptloader.cli.output import Output, table
from conceptloader.trace import (
    ConceptSeen,
    DocumentSeen,
    Run,
    excluded_since,
    locate_concept,
    locate_document,
    locate_where,
    parse_where,
)
from conceptloader.trace.commands.runs import add_run_arguments, open_run

logger = logging.getLogger(__name__)

DESCRIPTION = """\
Find the steps that contain a document or concept, past or future. They are computed: the run is not scanned.

  conceptloader locate --run-log checkpoints --document asyncio.events --samples 1000000
  conceptloader locate --run-log checkpoints --concept FunctionDef --limit 20

Inputs and labels are distinguished: the last token of a window is only a label, the first only an input. For a
document, positions first:end in the sample are shown; for a concept, numbers of tokens.

With an index of the track (conceptloader index) only spans of the concept are read; without one, the whole track.
For a document that is excluded, the sample from which on it is not read is shown.

Without --samples, the length of the run, only the first epoch of each dataset is searched. Without a run log or
--global-batch-size, samples are shown without steps.
"""

_HEADER = ["sample", "step", "micro batch", "rank", "slot", "dataset", "epoch", "window", "inputs", "labels"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    what = parser.add_mutually_exclusive_group(required=True).add_argument
    what("--document", metavar="ID", help="a document, by its id")
    what("--document-number", type=not_negative, metavar="N", help="a document, by its number in --dataset")
    what("--concept", metavar="NAME", help="a concept, by its name")
    meaning = "tokens for which this is true, such as \"concepts:animal and not concepts:'red wine'\""
    what("--where", metavar="EXPR", help=meaning)
    what("--concept-id", type=not_negative, metavar="N", help="a concept, by its id")
    add = parser.add_argument
    add("--track", default="concepts", metavar="NAME", help="track of the concept (default: concepts)")
    add("--dataset", metavar="NAME", help="only this dataset")
    add("--samples", type=positive, metavar="N", help="length of the run in samples, over all ranks")
    add("--limit", type=positive, metavar="N", help="only the first N results")


def run(arguments: argparse.Namespace, output: Output) -> None:
    if arguments.samples is None:
        logger.warning("only the first epoch of each dataset is searched; pass the length of the run: --samples")
    asked = open_run(arguments)
    document = arguments.document_number if arguments.document is None else arguments.document
    seen = _seen(asked, arguments, document)
    value: dict[str, Any] = {"seen": [one.to_dict() for one in seen]}
    lines = table([_row(one) for one in seen], _HEADER)
    if not all(one.places for one in seen):
        lines = [*lines, "? is not known: give --run-log, or --global-batch-size, --micro-batch-size and --dp-size"]
    if document is not None:
        found = excluded_since(asked, document, arguments.dataset)
        value["left_out"] = [{"dataset": name, "document": n, "since": since} for (name, n), since in found.items()]
        lines += [_said(asked, name, number, since) for (name, number), since in found.items()]
    output.result(value, lines)


def _said(asked: Run, dataset: str, number: int, since: int) -> str:
    if not since:
        return f"tokens of document {number} of {dataset} are never read: excluded from the start on"
    places = asked.places(since)
    step = f" (step {places[0].step:,})" if places else ""
    return f"tokens of document {number} of {dataset} are excluded from sample {since:,}{step} on"


def _seen(
    asked: Run, arguments: argparse.Namespace, document: str | int | None
) -> Sequence[DocumentSeen | ConceptSeen]:
    if document is not None:
        return locate_document(asked, document, arguments.samples, arguments.dataset)[: arguments.limit]
    if arguments.where is not None:
        refuse_beside("--where", arguments, "track")
        found = locate_where(asked, parse_where(arguments.where), arguments.samples, arguments.dataset)
    else:
        concept = arguments.concept_id if arguments.concept is None else arguments.concept
        found = locate_concept(asked, arguments.track, concept, arguments.samples, arguments.dataset)
    return sorted(itertools.islice(found, arguments.limit), key=lambda one: one.sample)


def _row(one: DocumentSeen | ConceptSeen) -> list[object]:
    place: list[Any] = list(one.places[0]) if one.places else ["?"] * 4
    return [one.sample, *place, one.dataset, one.epoch, one.window, _shown(one.inputs), _shown(one.labels)]


def _shown(found: Any) -> object:
    if found is None:
        return "-"
    return found if isinstance(found, int) else f"{found[0]}:{found[1]}"
