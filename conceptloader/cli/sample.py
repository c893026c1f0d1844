"""conceptloader sample"""

import argparse
import random

from conceptloader.base.terminal import masked
from conceptloader.cli import window
from conceptloader.cli.arguments import positive
from conceptloader.cli.output import Output
from conceptloader.format.read.dataset import open_dataset
from conceptloader.ingest.rows.tokenizer import find_tokenizer

DESCRIPTION = """\
Show some windows, or documents, drawn at random, to see what a model would see. The same --seed shows the same ones.

  conceptloader sample data/corpus --count 3 --seq-len 128
  conceptloader sample data/corpus --documents --seed 7
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    window.add_arguments(parser)
    parser.add_argument("--count", type=positive, default=3, metavar="N", help="default: 3")
    parser.add_argument("--seq-len", type=positive, default=128, metavar="S", help="default: 128")
    parser.add_argument("--documents", action="store_true", help="whole documents instead of windows")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")


def run(arguments: argparse.Namespace, output: Output) -> None:
    with open_dataset(arguments.dataset, arguments.root) as dataset:
        tokenizer = find_tokenizer(dataset, arguments.tokenizer)
        documents = arguments.documents or dataset.mode == "document"
        windows = None if documents else dataset.windows(arguments.seq_len, tracks=[])
        total = dataset.num_documents if windows is None else len(windows)
        chosen = sorted(random.Random(arguments.seed).sample(range(total), min(arguments.count, total)))
        kind, place = ("document", dataset.document_range) if windows is None else ("window", windows.token_range)
        found, text = [], []
        for number in chosen:
            shown = window.describe(dataset, *place(number), tokenizer)
            del shown["reads"]
            found.append({kind: number, **shown})
            text += [f"== {kind} {number:,}", *window.lines(shown), ""]
    output.result({"dataset": masked(dataset.path), "seed": arguments.seed, "samples": found}, text)
