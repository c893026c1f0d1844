"""What `conceptloader trace --audit` shows: the first step that differs from what its launch should have read."""

import argparse

from conceptloader.batch_log.record import FOLDER
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError
from conceptloader.trace import audit, read_record
from conceptloader.trace.commands.runs import open_run
from conceptloader.trace.past import open_log


def show_audit(arguments: argparse.Namespace, output: Output) -> int:
    if (record := arguments.record) is None:
        if arguments.run_log is None:
            raise ConfigError(
                "--audit",
                "no --record and no --run-log",
                "a batch log",
                "add --run-log, next to which it is, or --record",
            )
        record = open_log(arguments.run_log).path.parent / FOLDER
    asked = open_run(arguments)
    report = audit(asked, read_record(record), digests=arguments.record is None)
    first, stop = report.steps
    lines = [
        f"{report.samples:,} samples of steps {first} to {stop - 1}, "
        f"in {report.launches} launch{'es' * (report.launches != 1)}; "
        f"{report.repeated:,} of them were trained again after a restart"
    ]
    if report.by_tokens:
        lines.append(
            f"{report.by_tokens:,} of them were compared by input_ids and labels alone: no SHA-256 is recorded"
        )
    if report.incomplete:
        lines.append(f"step {report.incomplete[0]} is incomplete: the run ended in it, or is still running")
    difference = report.difference
    lines.append("as configured" if difference is None else f"the first difference is in {difference}")
    output.result(report.to_dict(), lines)
    return 0 if difference is None else 1
