"""The command `conceptloader exposure`."""

import argparse

from conceptloader.cli.arguments import not_negative, positive, read_ids, refuse_beside, refuse_without
from conceptloader.cli.output import Output
from conceptloader.cli.tables import add_table_arguments, write_table
from conceptloader.errors import ConfigError
from conceptloader.trace import exposure, exposure_by
from conceptloader.trace.commands.runs import add_run_arguments, open_run

DESCRIPTION = """\
Count what was seen until a step, past or future, from the order and the launches of the run: a row per source, document
or concept, with tokens and epochs; for documents also the first sample and step, and the first checkpoint that has seen
them. Steps that were re-run after a restart count once. By source and columns of documents, as in `subset`, it is a
summary of the training content whose rows sum to the totals:

  conceptloader exposure --run-log checkpoints --until 20000 --by source,metadata.domain,metadata.license

  conceptloader exposure --run-log checkpoints --until 20000 --by source
  conceptloader exposure --run-log checkpoints --until 20000 --by document --documents ids.txt --save-every 500
  conceptloader exposure run.yaml --samples 1000000 --by concept --format parquet --out concepts.parquet
"""

_ROWS = "source", "document", "concept"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    add = parser.add_argument
    until = parser.add_mutually_exclusive_group(required=True).add_argument
    until("--until", type=not_negative, metavar="STEP", help="count the steps before this one")
    until("--samples", type=positive, metavar="N", help="count this number of samples, without steps")
    meaning = "source (default), document, concept, or columns of documents: source,domain,metadata.license"
    add("--by", default="source", metavar="WHAT", help=meaning)
    add("--metadata", metavar="FILE", help="Parquet or JSONL with a row per document; adds its columns to --by")
    add("--on", metavar="COLUMN", help="column of --metadata with the documents' ids (default: id)")
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
            raise ConfigError(
                f"--{name.replace('_', '-')}", f"with --by {arguments.by}", f"--by {by}", f"omit it, or count by {by}"
            )
    if arguments.save_every is not None and arguments.until is None:
        raise ConfigError("--save-every", "without --until", "a run whose steps are known", "add --until")
    refuse_without("--metadata", arguments, "on")
    if arguments.by in _ROWS:
        refuse_beside(f"--by {arguments.by}", arguments, "metadata")
    ids = None if arguments.documents is None else read_ids("--documents", arguments.documents)
    seen = exposure(open_run(arguments), until=arguments.until, num_samples=arguments.samples)
    if arguments.by == "document":
        every = arguments.save_every
        checkpoints = range(every, arguments.until + 1, every) if every else ()
        batches = seen.document_batches(ids, checkpoints)
    elif arguments.by == "concept":
        batches = seen.concepts(arguments.track, arguments.dataset).to_batches()
    elif arguments.by == "source":
        batches = seen.sources().to_batches()
    else:
        batches = exposure_by(seen, arguments.by.split(","), arguments.metadata, arguments.on).to_batches()
    write_table(batches, arguments, output, as_text=True)
