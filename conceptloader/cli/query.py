"""The command `conceptloader query`."""

import argparse
import json
import os
import re
from typing import Any

from conceptloader.base.arguments import positive, steps
from conceptloader.cli.output import Output, table
from conceptloader.cli.runs import CONFIG, add_run_arguments, open_run
from conceptloader.errors import ConfigError
from conceptloader.format.parquet import write_parquet
from conceptloader.storage.durable import completed
from conceptloader.storage.reads import named
from conceptloader.trace.tables import batches, read_tables

_SQL = re.compile(r"[\s(]*(select|from|with|values)\b", re.IGNORECASE)
USAGE = "[CONFIG] SQL --steps A:B [options]"
DESCRIPTION = """\
Ask in SQL (DuckDB) what steps consist of, past or future, and how much of the data was seen in them. Tables: samples,
parts (documents in samples), documents, spans, losses (of samples), datasets. Columns and examples: docs/queries.md.

  conceptloader query "from datasets" --run-log checkpoints --steps 0:20000
  conceptloader query "select id, first_step from documents where seen > 0 and id like 'page-%'"
    --run-log checkpoints --steps 0:20000 --parquet seen.parquet
  conceptloader query run.yaml "select name, sum(seen) from spans group by all order by 2 desc" --samples 1000000

--table domains=domains.parquet adds a table of a Parquet file. A query can read nothing else.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("words", nargs="+", metavar="[CONFIG] SQL", help=f"{CONFIG}; and one SELECT")
    add_run_arguments(parser)
    which = parser.add_mutually_exclusive_group(required=True).add_argument
    which("--steps", type=steps, metavar="A:B", help="of the steps A to B - 1")
    which("--samples", type=positive, metavar="N", help="of the first N samples, without steps")
    add("--table", action="append", default=[], metavar="NAME=FILE", help="a Parquet file as a table")
    add("--parquet", metavar="FILE", help="write the rows to this file")


def run(arguments: argparse.Namespace, output: Output) -> None:
    sql = [word for word in arguments.words if _SQL.match(word)]
    arguments.config = next((word for word in arguments.words if word not in sql), None)
    if len(sql) != 1 or len(arguments.words) > 2:
        raise ConfigError("query", f"{arguments.words}", "[CONFIG] SQL", "pass one SELECT, in quotes")
    tables = read_tables(arguments.table)
    found = batches(open_run(arguments), sql[0], arguments.steps, arguments.samples, tables)
    if path := arguments.parquet:
        with named(path, "written"), completed(os.path.abspath(path)) as temporary:
            rows = write_parquet(found, temporary)
        output.result({"path": path, "rows": rows}, [f"{path}: {rows:,} rows"])
        return
    first = next(found)
    listed = [row for batch in (first, *found) for row in batch.to_pylist()]
    cells = [[_cell(value) for value in row.values()] for row in listed]
    value = {"rows": json.loads(json.dumps(listed, default=str))} if output.as_json else {}  # times as text
    output.result(value, table(cells, first.schema.names))


def _cell(value: Any) -> object:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else value
