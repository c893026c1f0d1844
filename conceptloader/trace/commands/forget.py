"""The command `conceptloader forget`."""

import argparse
import os
from typing import Any

import numpy as np
import yaml

from conceptloader.base.yamlfile import parse_yaml, read_yaml
from conceptloader.blend import load_config
from conceptloader.cli.arguments import not_negative, positive, read_ids, refuse_beside, refuse_without
from conceptloader.cli.output import Output, table
from conceptloader.errors import ConfigError
from conceptloader.storage.durable import write_file
from conceptloader.trace import Checkpoint, Run, Sightings, documents_with, find_sightings, open_other
from conceptloader.trace.checkpoints import check_continuous, last_before
from conceptloader.trace.commands.runs import add_run_arguments, checkpoints_of, open_run

DESCRIPTION = """\
Plan a run without some documents that repeats as little as possible: which steps saw them, the last checkpoint before
the first of these, and the configuration with which a new run resumes there as if they had no content.

  conceptloader forget run.yaml --ids optouts.txt --run-log checkpoints --checkpoints checkpoints --out without.yaml

Copy the run log and that checkpoint to a new directory, resume there with the new configuration, and check the new run:

  conceptloader forget without.yaml --ids optouts.txt --run-log new --until 20000 --check

The run ends at --until or --samples, by default at the newest checkpoint. Limits: docs/removal.md.
"""

LIMITS = (
    "limits: the earliest document decides how much is replayed",
    "        documents of the same content and other ids stay; lengths, order and number of samples are as before",
    "        what reacts to losses, such as weights that are set during the run, may go another way",
)
_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    add = parser.add_argument
    add("--ids", required=True, metavar="FILE", help="ids of the documents, one per line")
    add("--checkpoints", metavar="DIR", help="directory of the run's checkpoints, of any trainer")
    end = parser.add_mutually_exclusive_group().add_argument
    end("--until", type=not_negative, metavar="STEP", help="end of the run: the step after the last")
    end("--samples", type=positive, metavar="N", help="end of the run in samples, over all ranks")
    add("--out", metavar="FILE", help="write the configuration of the new run, next to CONFIG if that is given")
    add("--check", action="store_true", help="exit code 1 if any step has one of the documents")
    add("--allow-unknown", action="store_true", help="accept ids that no dataset has")


def run(arguments: argparse.Namespace, output: Output) -> int:
    refuse_without("--checkpoints", arguments, "out")
    if arguments.check:
        refuse_beside("--check", arguments, "out", "planned")
    asked = open_run(arguments)
    check_continuous(asked)
    ids = read_ids("--ids", arguments.ids)
    documents, unknown = documents_with(asked, ids)
    if len(unknown) == len(ids) or (unknown and not arguments.allow_unknown):
        raise ConfigError(
            "--ids",
            f"{len(unknown):,} of {len(ids):,} ids that no dataset has, such as {', '.join(map(repr, unknown[:5]))}",
            "ids as in the input",
            "correct them, or accept that these documents are not in the data: --allow-unknown",
        )
    checkpoints, skipped = checkpoints_of(asked, arguments)
    end = _end(asked, arguments, checkpoints)
    seen = find_sightings(asked, documents, end)
    steps = _steps(asked, seen)
    value: dict[str, Any] = {
        "documents": sum(map(len, documents.values())),
        "unknown": unknown,
        "seen_documents": len(set(zip(seen.dataset.tolist(), seen.document.tolist(), strict=True))),
        "samples": len(np.unique(seen.sample)),
        "until_sample": end,
        "steps": steps,
    }
    held = f"{value['seen_documents']:,} of {value['documents']:,} documents are in {value['samples']:,}"
    lines = [
        f"{held} of {end:,} samples"
        + (f", in {len(steps):,} steps" if asked.history is not None else ""),
        *table([["?" if one["step"] is None else one["step"], one["samples"], one["first_sample"],
                 " ".join(map(str, one["ranks"]))] for one in steps[:_SHOWN]],
               ["step", "samples", "first sample", "ranks"]),
        *([f"... and {len(steps) - _SHOWN:,} more steps: --json has all"] if len(steps) > _SHOWN else []),
    ]  # fmt: skip
    if arguments.checkpoints:
        first = int(seen.sample[0]) if len(seen.sample) else end
        start = last_before(checkpoints, first)
        at = 0 if start is None else start.consumed
        share = (end - at) / end if len(seen.sample) and end else 0.0
        value |= {"checkpoint": start and start.to_dict(), "replayed": share, "skipped": skipped}
        lines += _replay(asked, start, share, len(checkpoints))
        lines += [f"skipped: {why}" for why in skipped.values()]
        if arguments.out is not None:
            _write(asked, arguments, start, at)
            value["config"] = arguments.out
            lines.append(f"{arguments.out}: excludes them from sample {at:,} on")
    output.result(value, [*lines, *(() if arguments.check else LIMITS)])
    return int(arguments.check and len(seen.sample) > 0)


def _end(asked: Run, arguments: argparse.Namespace, checkpoints: list[Checkpoint]) -> int:
    if arguments.until is not None:
        return asked.steps.range_of(arguments.until)[0]
    if arguments.samples is None and not checkpoints:
        raise ConfigError(
            "forget",
            "no end of the run",
            "--until, --samples or --checkpoints",
            "add --until STEP, --samples N or --checkpoints DIR",
        )
    return arguments.samples or checkpoints[-1].consumed


def _steps(asked: Run, seen: Sightings) -> list[dict[str, Any]]:
    """Of each step how many of its samples hold any document, the first of them, and on which ranks."""
    found: dict[int | None, dict[str, Any]] = {}
    for sample in np.unique(seen.sample).tolist():
        places: list[Any] = [*asked.places(sample)]
        for place in places or [None]:
            step = place and place.step
            one = found.setdefault(step, {"step": step, "samples": 0, "first_sample": sample, "ranks": set()})
            one["samples"] += 1
            if place is not None:
                one["ranks"].add(place.dp_rank)
    return [{**one, "ranks": sorted(one["ranks"])} for one in found.values()]


def _replay(asked: Run, start: Checkpoint | None, share: float, known: int) -> list[str]:
    if start is None:
        return [f"none of {known:,} checkpoints was saved before the first of them: the run starts over"]
    step = "" if start.step is None else f", before step {start.step:,}"
    lines = [
        f"{start.path} is the last checkpoint before the first of them, at sample {start.consumed:,}{step}: "
        f"{share:.1%} of the run is replayed"
    ]
    later = sum(at >= start.spec.decided(start.consumed) for at in asked.whole_order.live)
    if later:
        lines.append(f"weights were set {later:,} times after it, during the run: the new run sets its own")
    return lines


def _write(asked: Run, arguments: argparse.Namespace, start: Checkpoint | None, at: int) -> None:
    """Write the new configuration, once a resume from the checkpoint is known to take it."""
    path, base = arguments.out, os.path.dirname(os.path.abspath(arguments.out))
    entry = {"at": at, "file": os.path.abspath(arguments.ids).replace("${", "$${"), "take": "own"}
    given = arguments.config
    data = asked.blend.config.to_dict() if given is None else read_yaml(given)
    new = {**data, "exclude": [*(data.get("exclude") or []), entry]}
    if given is not None and load_config(data, base_dir=base) != load_config(given):
        raise ConfigError(
            "--out",
            f"{path}, from where relative paths lead elsewhere",
            f"a file next to {given}",
            "write it next to that file",
        )
    text = yaml.safe_dump(new, sort_keys=False, allow_unicode=True)
    if given is not None and "exclude" not in data:
        with open(given, encoding="utf-8-sig") as file:
            kept = file.read()
        if not kept.lstrip().startswith("{"):
            text = f"{kept.rstrip()}\n{yaml.safe_dump({'exclude': [entry]}, sort_keys=False)}"  # with all comments
    assert parse_yaml(text) == new
    other = open_other(asked, new, base)
    if start is not None:
        other.blend.resume(start.spec, start.consumed)
    if not write_file(path, text.encode(), exclusive=True):
        raise ConfigError("--out", f"{path}, which exists", "a new file", "choose another name, or remove the file")
