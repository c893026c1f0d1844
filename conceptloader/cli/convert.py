"""conceptloader convert"""

import argparse

from conceptloader.cli.arguments import add_dataset, add_out
from conceptloader.cli.output import Output
from conceptloader.format.read.files import load_manifest
from conceptloader.format.tools.convert import convert

DESCRIPTION = """\
Write a dataset again, its tracks encoded as spans (12 bytes a run, small for long spans), dense (4 bytes a token), or
auto, whichever is smaller in each shard. The stream fingerprint stays, so a running training can change over.
Interrupted, it goes on where it was when called again.

  conceptloader convert data/code --out data/code-spans --encoding spans
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_out(parser.add_argument)
    parser.add_argument("--encoding", choices=("auto", "dense", "spans"), default="auto", help="default: auto")
    parser.add_argument("--track", action="append", metavar="NAME", help="only this track; the others are auto")


def run(arguments: argparse.Namespace, output: Output) -> None:
    tracks = arguments.track or sorted(load_manifest(arguments.dataset, arguments.root)[0].tracks)
    manifest = convert(arguments.dataset, arguments.out, dict.fromkeys(tracks, arguments.encoding), arguments.root)
    encodings = {name: sorted({e or "none" for e in manifest.shards.tracks[name].encoding}) for name in manifest.tracks}
    value = {"path": arguments.out, "encodings": encodings, "stream_fingerprint": manifest.stream_fingerprint()}
    lines = [f"{arguments.out}: " + ", ".join(f"{name}: {' and '.join(kinds)}" for name, kinds in encodings.items())]
    output.result(value, lines)
