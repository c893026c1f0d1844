"""The command `conceptloader audit`."""

import argparse

from conceptloader.batch_log.record import FOLDER
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError
from conceptloader.trace import audit, read_record
from conceptloader.trace.commands.runs import add_config, add_planned, open_logged
from conceptloader.trace.past import open_log

DESCRIPTION = """\
Compare the batch log of a run with what the order of each launch and the data give: samples, datasets and checksums of
the tokens of each micro batch. If they differ, name the first step, micro batch and rank, with exit code 1. With
--planned, or without a run log, compare it with what the configuration gives.

  conceptloader audit --run-log checkpoints    # what `loader: {batch_log: true}` wrote there, with its SHA-256
  conceptloader audit --record run/record --run-log checkpoints    # of conceptloader.trace.BatchRecorder
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_config(parser)
    add("--record", metavar="DIR", help="batch log that the ranks wrote (default: next to the run log)")
    add("--run-log", metavar="DIR", help="directory of conceptloader_runs.jsonl")
    add_planned(add)


def run(arguments: argparse.Namespace, output: Output) -> int:
    if (record := arguments.record) is None:
        if arguments.run_log is None:
            raise ConfigError(
                "audit", "no --record and no --run-log", "one of them", "the batch log is next to the run log"
            )
        record = open_log(arguments.run_log).path.parent / FOLDER
    asked = open_logged(arguments)
    report = audit(asked, read_record(record), digests=arguments.record is None)
    first, stop = report.steps
    lines = [
        f"{report.samples:,} samples of steps {first} to {stop - 1}, in {report.launches} launches; "
        f"{report.repeated:,} of them were trained again after a restart"
    ]
    if report.incomplete:
        lines.append(f"step {report.incomplete[0]} is incomplete: the run ended in it, or is still running")
    difference = report.difference
    lines.append("as configured" if difference is None else f"the first difference is in {difference}")
    output.result(report.to_dict(), lines)
    return 0 if difference is None else 1
