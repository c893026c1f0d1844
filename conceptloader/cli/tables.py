"""Tables of commands: to parquet or jsonl, batch by batch."""

import argparse
import json
import os
from collections.abc import Iterable
from typing import Any

from conceptloader.base.terminal import printable_json
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError
from conceptloader.storage.durable import completed
from conceptloader.storage.reads import named
from conceptloader.trace.bulk import write_parquet


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("table").add_argument
    group("--format", choices=["jsonl", "parquet"], help="of a table (default: jsonl)")
    group("--out", metavar="FILE", help="of a table (default for jsonl: stdout)")


def write_table(batches: Iterable[Any], arguments: argparse.Namespace, output: Output) -> None:
    """Write record batches as the arguments say. The file is there only when it is complete."""
    parquet = arguments.format == "parquet"
    if parquet and arguments.out is None:
        raise ConfigError("--out: missing, expected the file of --format parquet")
    if arguments.out is None:
        found = (row for batch in batches for row in batch.to_pylist())
        if output.as_json:
            output.result({"rows": list(found)}, ())
        else:
            for row in found:
                print(printable_json(json.dumps(row, ensure_ascii=False)))
        return
    with named(arguments.out, "written"), completed(os.path.abspath(arguments.out)) as temporary:
        rows = (write_parquet if parquet else _jsonl)(batches, temporary)
    output.result({"path": arguments.out, "rows": rows}, [f"{arguments.out}: {rows:,} rows"])


def _jsonl(batches: Iterable[Any], path: str) -> int:
    rows = 0
    with open(path, "x", encoding="utf-8") as file:
        for batch in batches:
            for row in batch.to_pylist():
                file.write(json.dumps(row) + "\n")
            rows += batch.num_rows
    return rows
