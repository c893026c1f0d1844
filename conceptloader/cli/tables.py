"""Tables of commands: to Parquet or JSONL, batch by batch."""

import argparse
import json
import os
from collections.abc import Iterable
from typing import Any

from conceptloader.base.terminal import printable_json
from conceptloader.cli.output import Output, table
from conceptloader.errors import ConfigError
from conceptloader.format.parquet import write_parquet
from conceptloader.storage.durable import completed
from conceptloader.storage.reads import named


def add_table_arguments(parser: argparse.ArgumentParser, default: str = "jsonl") -> None:
    """Add --format and --out. default: what is written to stdout, see `write_table`."""
    group = parser.add_argument_group("table").add_argument
    group("--format", choices=["jsonl", "parquet"], help=f"default: {default} on stdout, jsonl in a file")
    group("--out", metavar="FILE", help="file of the table (default: stdout)")


def write_table(
    batches: Iterable[Any], arguments: argparse.Namespace, output: Output, *, as_text: bool = False
) -> None:
    """Write record batches as the arguments say, to a file atomically.

    as_text: without --format and --out, print aligned columns.
    """
    parquet = arguments.format == "parquet"
    if parquet and arguments.out is None:
        raise ConfigError("--out", "nothing", "the file of --format parquet", "add --out FILE, or omit --format")
    if arguments.out is None:
        found = (row for batch in batches for row in batch.to_pylist())
        if as_text and arguments.format is None and not output.as_json:
            rows_of_text = list(found)
            header = list(rows_of_text[0]) if rows_of_text else []
            output.result({}, table([[_cell(value) for value in row.values()] for row in rows_of_text], header))
        elif output.as_json:
            output.result({"rows": list(found)}, ())
        else:
            for row in found:
                print(printable_json(json.dumps(row, ensure_ascii=False)))
        return
    with named(arguments.out, "written"), completed(os.path.abspath(arguments.out)) as temporary:
        rows = (write_parquet if parquet else _jsonl)(batches, temporary)
    output.result({"path": arguments.out, "rows": rows}, [f"{arguments.out}: {rows:,} rows"])


def _cell(value: Any) -> object:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else value


def _jsonl(batches: Iterable[Any], path: str) -> int:
    rows = 0
    with open(path, "x", encoding="utf-8") as file:
        for batch in batches:
            for row in batch.to_pylist():
                file.write(json.dumps(row) + "\n")
            rows += batch.num_rows
    return rows
