"""The command `conceptloader receipt`."""

import argparse
import json
import os

from conceptloader.blend.load import read_yaml
from conceptloader.cli.arguments import not_negative, positive
from conceptloader.cli.output import Output
from conceptloader.cli.runs import add_config
from conceptloader.storage.durable import write_file
from conceptloader.trace import make_receipt, state_run

DESCRIPTION = """\
Prove to anyone in which steps of a run a document was, and that it was in no others (docs/receipts.md).

  conceptloader receipt --run-log checkpoints --samples 120000 --out run.json
  conceptloader receipt --run-log checkpoints --samples 120000 --published run.json --document tin-7

Without a document, the root of the run, to be signed or published, and in --out what it is the root of. --published
compares that with the run as it is now, so that no receipt is made of an edited run log or a rebuilt dataset. Datasets
need the hashes of their documents: build or adopt them with --receipts.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_config(parser)
    add("--run-log", required=True, metavar="DIR", help="directory of conceptloader_runs.jsonl")
    samples = "samples that the run has trained, over all ranks: the consumed samples of its last checkpoint"
    add("--samples", required=True, type=positive, metavar="N", help=samples)
    what = parser.add_mutually_exclusive_group().add_argument
    what("--document", metavar="ID", help="a document, by its id")
    what("--document-number", type=not_negative, metavar="N", help="a document, by its number in --dataset")
    add("--dataset", metavar="NAME", help="dataset of the document (default: any)")
    add("--published", metavar="FILE", help="what was published: refuse a run that is another one now")
    add("--out", metavar="FILE", help="where the receipt is written (default: printed)")


def run(arguments: argparse.Namespace, output: Output) -> None:
    stated = state_run(arguments.config, arguments.run_log, arguments.samples)
    if arguments.published is not None:
        stated.check_published(read_yaml(arguments.published), arguments.published)
    document = arguments.document_number if arguments.document is None else arguments.document
    if document is None:
        value, line = dict(stated.value), f"root of the run: {stated.root}"
    else:
        value = make_receipt(stated, document, arguments.dataset)
        samples = value["sightings"]
        steps = len({step for step, *_ in samples})
        line = f"document {document}: in {len(samples):,} samples of {steps:,} steps; root of the run: {stated.root}"
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if arguments.out is None:
        output.result({"root": stated.root, "value": value}, [line, text])
    else:
        write_file(os.path.abspath(arguments.out), f"{text}\n".encode())
        output.result({"root": stated.root, "path": arguments.out}, [f"{line}; written to {arguments.out}"])
