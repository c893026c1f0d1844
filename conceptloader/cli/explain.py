"""conceptloader explain"""

import argparse

from conceptloader.cli.arguments import chosen, not_negative, positive
from conceptloader.cli.output import Output, table
from conceptloader.cli.runs import add_run_arguments, open_run
from conceptloader.trace import explain

DESCRIPTION = """\
Join a loss log (conceptloader.LossLog, one line in the trainer) with what was in a step: its loss beside the usual one,
the documents that raised it most, and the concepts that they are about.

  conceptloader explain run.yaml --log checkpoints --losses losses --step 1200

`excess` is a document's part of the rise of the loss: its share of the sample times what the sample's loss is above the
usual one, the mean of the steps before.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    add = parser.add_argument
    add("--losses", required=True, metavar="DIR", help="the loss log")
    add("--step", type=not_negative, required=True, metavar="N")
    add("--top", type=positive, default=10, metavar="N", help="documents and concepts (default: 10)")
    add("--baseline", type=positive, default=100, metavar="N", help="steps before, for the usual loss (default: 100)")
    add("--track", default="concepts", metavar="NAME", help="of the concepts (default: concepts)")


def run(arguments: argparse.Namespace, output: Output) -> None:
    options = chosen(arguments, "top", "baseline", "track")
    found = explain(open_run(arguments), arguments.losses, arguments.step, **options)
    usual = "no step before was logged" if found["usual"] is None else f"usual: {found['usual']:.4f}"
    logged = f"{found['logged']} of {found['samples']} samples were logged"
    documents = [
        [f"{one['excess']:+.5f}", f"{one['loss']:.4f}", one["sample"], one["dataset"], one["id"] or one["document"],
         f"{one['start']}:{one['end']}", ", ".join(map(str, one[arguments.track][:5]))]
        for one in found["documents"]
    ]  # fmt: skip
    concepts = [
        [f"{one['excess']:+.5f}", one["concept"], "-" if one["span_loss"] is None else f"{one['span_loss']:.4f}"]
        for one in found["concepts"]
    ]
    lines = [
        f"step {found['step']}: loss {found['loss']:.4f} ({usual}); {logged}",
        *table(documents, ["excess", "loss", "sample", "dataset", "document", "tokens", arguments.track]),
        *table(concepts, ["excess", "concept", "loss of its spans"]),
    ]
    output.result(found, lines)
