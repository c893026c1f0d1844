"""conceptloader vocabulary"""

import argparse
import os
from collections import Counter
from typing import Any

from conceptloader.cli.arguments import add_max_line_bytes, positive
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.spec.vocabulary import dump_vocabulary
from conceptloader.ingest.rows.inputs import Source, find_sources, read_rows
from conceptloader.storage.durable import write_file

DESCRIPTION = """\
Read the spans of all records and write the names of their concepts, the most frequent first, one per line: a vocabulary
for `conceptloader build`. Order and content depend on the records alone.

  conceptloader vocabulary corpus/ --out concepts.txt
  conceptloader build corpus/ --out data/corpus --tokenizer bytes --concepts-vocabulary concepts.txt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="files, or directories of files")
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write; must not exist")
    parser.add_argument("--column", default="spans", metavar="NAME", help="column of the spans (default: spans)")
    parser.add_argument("--min-count", type=positive, default=1, metavar="N", help="leave out rarer names (default: 1)")
    add_max_line_bytes(parser.add_argument)


def run(arguments: argparse.Namespace, output: Output) -> None:
    taken = ConfigError(f"--out {arguments.out}", "a file", "none", "remove it or choose another name")
    if os.path.lexists(arguments.out):
        raise taken
    names: Counter[str] = Counter()
    for source in find_sources(arguments.inputs):
        count_names(source, arguments.column, arguments.max_line_bytes, names)
        source.check_unchanged()
    if not names:
        raise InputError(
            ", ".join(arguments.inputs),
            f"no concept by name in column {arguments.column!r}",
            "at least one",
            "name the column of the spans (--column)",
        )
    kept = sorted(
        (name for name, n in names.items() if n >= arguments.min_count), key=lambda name: (-names[name], name)
    )
    unfit = next((name for name in kept if not name or "\n" in name or name != name.removesuffix("\r")), None)
    if unfit is not None or (kept and kept[0].startswith(("[", "\ufeff"))):
        data = dump_vocabulary(kept)  # names that lines cannot hold: a JSON list, which `build` reads as well
    else:
        data = "".join(f"{name}\n" for name in kept).encode("utf-8")
    if not write_file(os.path.abspath(arguments.out), data, exclusive=True):
        raise taken
    value: dict[str, Any] = {"file": arguments.out, "names": len(kept), "left_out": len(names) - len(kept)}
    output.result(value, [f"{arguments.out}: {len(kept):,} names, {value['left_out']:,} rarer ones left out"])


def count_names(source: Source, column: str, max_line_bytes: int, names: "Counter[str]") -> None:
    """Count the concept names in one column of one file. Raises: InputError naming file and line."""
    for number, record in read_rows(source, max_line_bytes, column):
        spans = record.get(column)
        try:
            for span in () if spans is None else spans:
                names.update(concept for concept in span["concepts"] if isinstance(concept, str))
        except (TypeError, KeyError) as error:
            raise InputError(
                f"{source.row_name(number)}: {column}", f"{spans!r:.100}", "a list of spans with concepts"
            ) from error
