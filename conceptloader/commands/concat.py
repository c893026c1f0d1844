"""The command `conceptloader concat`."""

import argparse

from conceptloader.cli.arguments import add_out, add_root
from conceptloader.cli.output import Output
from conceptloader.format.tools.concat import concat

DESCRIPTION = """\
Concatenate datasets by reference, in the given order. Only a manifest is written: nothing is copied, and the datasets
must stay in place.

  conceptloader concat data/books data/code --out data/all
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("datasets", nargs="+", metavar="DATASET", help="directories of datasets, in order")
    add = parser.add_argument
    add_out(add)
    add_root(add, " (default: the datasets' parents)")
    add("--allow-mixed-tokenizers", action="store_true", help="accept datasets of different tokenizers")


def run(arguments: argparse.Namespace, output: Output) -> None:
    manifest = concat(arguments.datasets, arguments.out, arguments.root, arguments.allow_mixed_tokenizers)
    output.manifest(arguments.out, manifest)
