"""The command `conceptloader exposure`."""

import argparse

from conceptloader.cli.arguments import not_negative, positive, read_ids
from conceptloader.cli.output import Output
from conceptloader.cli.runs import add_run_arguments, open_run
from conceptloader.cli.tables import add_table_arguments, write_table
from conceptloader.errors import ConfigError
from conceptloader.trace import exposure

DESCRIPTION = """\
Count what was seen until a step, past or future, from the order and the launches of the run: a row per source, document
or concept, with tokens and epochs; for documents also the first sample and step, and the first checkpoint that has seen
them. Steps that were re-run after a restart count once.

  conceptloader exposure run.yaml --run-log checkpoints --until 20000 --by source
  conceptloader exposure run.yaml --run-log checkpoints --until 20000 --by document --documents ids.txt --save-every 500
  conceptloader exposure run.yaml --samples 1000000 --by concept --format parquet --out concepts.parquet
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    add = parser.add_argument
    until = parser.add_mutually_exclusive_group(required=True).add_argument
    until("--until", type=not_negative, metavar="STEP", help="count the steps before this one")
    until("--samples", type=positive, metavar="N", help="without a run log: count this number of samples")
    add("--by", choices=["source", "document", "concept"], default="source", help="what a row counts (default: source)")
    add("--documents", metavar="FILE", help="only documents with these ids, one per line, such as opt-outs")
    add(
        "--save-every",
        type=positive,
        metavar="N",
        help="steps between checkpoints, to name the first after a document",
    )
    add("--track", default="concepts", metavar="NAME", help="track of --by concept (default: concepts)")
    add("--dataset", metavar="NAME", help="concepts of this dataset only")
    add_table_arguments(parser, "columns of text")


def run(arguments: argparse.Namespace, output: Output) -> None:
    for name, by in (("documents", "document"), ("save_every", "document"), ("dataset", "concept")):
        if getattr(arguments, name) is not None and arguments.by != by:
            raise ConfigError(f"--{name.replace('_', '-')}", f"with --by {arguments.by}", f"--by {by}")
    if arguments.save_every is not None and arguments.until is None:
        raise ConfigError("--save-every", "without --until", "a run whose steps are known")
    ids = None if arguments.documents is None else read_ids("--documents", arguments.documents)
    seen = exposure(open_run(arguments), until=arguments.until, num_samples=arguments.samples)
    if arguments.by == "document":
        every = arguments.save_every
        checkpoints = range(every, arguments.until + 1, every) if every else ()
        batches = seen.document_batches(ids, checkpoints)
    else:
        table = seen.sources() if arguments.by == "source" else seen.concepts(arguments.track, arguments.dataset)
        batches = table.to_batches()
    write_table(batches, arguments, output, as_text=True)
