"""The command `conceptloader receipt`."""

import argparse
import json
import os

from conceptloader.base.terminal import counted
from conceptloader.base.yamlfile import read_yaml
from conceptloader.cli.arguments import add_root, chosen, not_negative, positive, refuse_all_but, refuse_without
from conceptloader.cli.output import Output, progress_bar
from conceptloader.errors import ConfigError
from conceptloader.receipts import make_receipt, prepare, state_run
from conceptloader.storage.durable import write_file
from conceptloader.trace.commands.runs import add_config

DESCRIPTION = """\
Prove to anyone in which steps of a run a document was, and that it was in no others (docs/receipts.md).

  conceptloader receipt --prepare data/corpus
  conceptloader receipt --run-log checkpoints --samples 120000 --out run.json
  conceptloader receipt --run-log checkpoints --samples 120000 --published run.json --document tin-7

--prepare, once for each dataset: hash its documents, into a file next to the manifest. Then, without a document, the
root of the run, to be signed or published, and in --out what it is the root of. --published compares that with the run
as it is now, so that no receipt is made of an edited run log or a rebuilt dataset.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    of = parser.add_mutually_exclusive_group(required=True).add_argument
    of("--prepare", metavar="DATASET", help="hash all documents of a dataset, unless that is done")
    of("--run-log", metavar="DIR", help="make a receipt: directory of conceptloader_runs.jsonl")
    add = parser.add_argument
    add("--check", action="store_true", help="with --prepare: hash them again and compare, write nothing")
    add("--workers", type=positive, default=1, metavar="N", help="with --prepare: processes (default: 1)")
    add_root(add, ", with --prepare")
    samples = "samples that the run has trained, over all ranks: the consumed samples of its last checkpoint"
    add("--samples", type=positive, metavar="N", help=samples)
    what = parser.add_mutually_exclusive_group().add_argument
    what("--document", metavar="ID", help="a document, by its id")
    what("--document-number", type=not_negative, metavar="N", help="a document, by its number in --dataset")
    add("--dataset", metavar="NAME", help="dataset of the document (default: any)")
    add("--published", metavar="FILE", help="what was published: refuse a run that is another one now")
    add("--out", metavar="FILE", help="where the receipt is written (default: printed)")


def run(arguments: argparse.Namespace, output: Output) -> None:
    of_datasets = "check", "workers", "root"
    refuse_without("--prepare", arguments, *of_datasets)
    if arguments.prepare is not None:
        refuse_all_but("--prepare", arguments, *of_datasets)
        _prepare(arguments, output)
        return
    if arguments.samples is None:
        raise ConfigError(
            "receipt", "no --samples", "how many samples the run of --run-log has trained", "add --samples N"
        )
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
        line = f"document {document}: in {counted(len(samples), 'sample')} of {counted(steps, 'step')}"
        line += f"; root of the run: {stated.root}"
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if arguments.out is None:
        output.result({"root": stated.root, "value": value}, [line, text])
    else:
        write_file(os.path.abspath(arguments.out), f"{text}\n".encode())
        output.result({"root": stated.root, "path": arguments.out}, [f"{line}; written to {arguments.out}"])


def _prepare(arguments: argparse.Namespace, output: Output) -> None:
    with progress_bar(arguments.quiet) as progress:
        written = prepare(arguments.prepare, arguments.root, progress=progress, **chosen(arguments, "check", "workers"))
    said = "its documents are those that were prepared" if arguments.check else "ready for receipts"
    known = "" if arguments.check or written else " (as before: --check reads it)"
    output.result({"dataset": arguments.prepare, "written": written}, [f"{arguments.prepare}: {said}{known}"])
