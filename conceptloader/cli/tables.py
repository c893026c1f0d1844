"""Tables of commands: to parquet or jsonl, batch by batch."""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from conceptloader.base.terminal import printable_json
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError, ReadError
from conceptloader.storage.durable import temporary_name


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("table").add_argument
    group("--format", choices=["jsonl", "parquet"], help="of a table (default: jsonl)")
    group("--out", metavar="FILE", help="of a table (default for jsonl: stdout)")


def steps(text: str) -> tuple[int, int]:
    """A range A:B of steps."""
    first, colon, stop = text.partition(":")
    if not (colon and first.isdecimal() and stop.isdecimal() and int(first) < int(stop) < 1 << 62):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected A:B with A below B, such as 1000:2000")
    return int(first), int(stop)


def check_no_table(arguments: argparse.Namespace, option: str) -> None:
    """Refuse --format and --out where no table is asked for."""
    for name in ("format", "out"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name}: found without {option}, which makes a table; leave it out, or use --json")


def write_table(batches: Iterable[Any], arguments: argparse.Namespace, output: Output) -> int:
    """Write record batches as the arguments say. The file is there only when it is complete. Returns: exit code 0."""
    parquet = arguments.format == "parquet"
    if parquet and arguments.out is None:
        raise ConfigError("--out: missing, expected the file of --format parquet")
    if arguments.out is None:
        if output.as_json:
            output.result({"rows": [row for batch in batches for row in batch.to_pylist()]}, ())
            return 0
        for batch in batches:
            for row in batch.to_pylist():
                print(printable_json(json.dumps(row, ensure_ascii=False)))
        return 0
    from conceptloader.trace.bulk import write_parquet

    target = os.path.abspath(arguments.out)
    temporary = temporary_name(target)
    rows = 0
    try:
        try:
            rows = (write_parquet if parquet else _jsonl)(batches, temporary)
            os.replace(temporary, target)
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)
    except OSError as error:
        if isinstance(error, ReadError):
            raise
        raise ReadError(error.errno, f"{arguments.out}: cannot be written: {error.strerror or error}") from error
    if output.as_json:
        output.result({"path": arguments.out, "rows": rows}, ())
    else:
        print(f"{arguments.out}: {rows:,} rows", file=sys.stdout)
    return 0


def _jsonl(batches: Iterable[Any], path: str) -> int:
    rows = 0
    with open(path, "x", encoding="utf-8") as file:
        for batch in batches:
            for row in batch.to_pylist():
                file.write(json.dumps(row) + "\n")
            rows += batch.num_rows
    return rows
