"""The command `conceptloader index`."""

import argparse

from conceptloader.base.arguments import add_dataset, chosen, positive
from conceptloader.cli.output import Output, progress_bar
from conceptloader.trace.index import build_index

DESCRIPTION = """\
Build the concept index of a track, in the dataset's directory: which spans carry each concept. With it, `locate`,
`subset` and `exclude` need not read the track. An existing index is reused. Counts: `inspect --stats`.

  conceptloader index data/corpus --workers 8
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add = parser.add_argument
    add("--track", default="concepts", metavar="NAME", help="track to index (default: concepts)")
    add("--workers", type=positive, default=1, metavar="N", help="processes (default: 1)")


def run(arguments: argparse.Namespace, output: Output) -> None:
    with progress_bar(arguments.quiet) as progress:
        options = chosen(arguments, "track", "workers")
        build_index(arguments.dataset, roots=arguments.root, progress=progress, **options)
    output.result({"track": arguments.track}, [f"{arguments.dataset}: the index of {arguments.track} is complete"])
