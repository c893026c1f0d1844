"""conceptloader finalize"""

import argparse
import os

from conceptloader.cli.output import Output

SUMMARY = "complete a build whose shards were written by other programs"
DESCRIPTION = """\
Write the manifest of a build whose shards are all finished: the last step of a build by datatrove or by a program of
your own. `conceptloader build` does this itself. Refuses missing, foreign and differently configured shards.

  conceptloader finalize data/corpus
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("build", metavar="DIR", help="directory of the build")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from conceptloader.format.build import open_build
    from conceptloader.format.finalize import finalize
    from conceptloader.format.lock import build_lock

    with build_lock(open_build(arguments.build).path):
        manifest = finalize(arguments.build)
    output.manifest(arguments.build, manifest, os.path.abspath(arguments.build))
    return 0
