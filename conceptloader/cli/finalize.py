"""conceptloader finalize"""

import argparse

from conceptloader.cli.arguments import add_max_lost_spans
from conceptloader.cli.output import Output
from conceptloader.ingest.build.lost import finalize_within

DESCRIPTION = """\
Write the manifest of a build whose shards are all finished: the last step of a build by datatrove or by a program of
your own. `conceptloader build` does this itself. Refuses missing, foreign and differently configured shards, and spans
that were lost when they were given to tokens.

  conceptloader finalize data/corpus
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("build", metavar="DIR", help="directory of the build")
    add_max_lost_spans(parser.add_argument)


def run(arguments: argparse.Namespace, output: Output) -> None:
    manifest = finalize_within(arguments.build, arguments.max_lost_spans)
    output.manifest(arguments.build, manifest)
