"""The command `conceptloader audit`."""

import argparse
import logging

from conceptloader.cli.output import Output
from conceptloader.errors import ResumeError
from conceptloader.trace import audit, open_run, read_record

logger = logging.getLogger(__name__)

DESCRIPTION = """\
Compare the batch log of a run (conceptloader.trace.BatchRecorder: samples, datasets and checksums of the tokens of each
micro batch) with what the configuration and the data give now. If they differ, name the first step, micro batch and
rank, with exit code 1.

  conceptloader audit run.yaml --record run/record --run-log checkpoints
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", metavar="CONFIG", help="configuration of the run, a YAML file")
    add("--record", required=True, metavar="DIR", help="batch log that the ranks wrote")
    add("--run-log", metavar="DIR", help="directory of conceptloader_runs.jsonl, if the run changed its data stage")


def run(arguments: argparse.Namespace, output: Output) -> int:
    try:
        asked = open_run(arguments.config, arguments.run_log)
    except ResumeError as error:  # which is what the audit is to find the first step of
        logger.warning("%s", error)
        asked = open_run(arguments.config)
    report = audit(asked, read_record(arguments.record))
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
