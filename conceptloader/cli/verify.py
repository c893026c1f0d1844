"""The command `conceptloader verify`."""

import argparse
import os
from dataclasses import asdict

from conceptloader.base.arguments import add_dataset, chosen, positive
from conceptloader.cli.output import Output, progress_bar
from conceptloader.format.tools.verify import verify

DESCRIPTION = """\
Check a dataset: that every file exists with its size and its spot checksum. With --full, read every byte: checksums,
order of documents and spans, token ids within the vocabulary. Exit code 1 if there are problems.

  conceptloader verify data/corpus --full

Each problem names the file and the range of tokens that it affects, ready for `exclude` in a configuration. Adopted
files have no checksums at first: --full writes checksums.json next to the manifest, and later checks compare with it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add = parser.add_argument
    add("--full", action="store_true", help="read every byte")
    add("--threads", type=positive, metavar="N", help="reading threads (default: one per available CPU)")
    add("--no-write", action="store_true", help="do not write checksums.json")


def run(arguments: argparse.Namespace, output: Output) -> int:
    with progress_bar(arguments.quiet) as progress:
        problems = verify(
            arguments.dataset,
            roots=arguments.root,
            write_checksums=not arguments.no_write,
            threads=arguments.threads or len(os.sched_getaffinity(0)),
            progress=progress,
            **chosen(arguments, "full"),
        )
    lines = [f"{p}" + (f" (tokens {p.tokens[0]} to {p.tokens[1]})" if p.tokens else "") for p in problems]
    kind = "every byte was read" if arguments.full else "sizes and spot checksums; --full reads every byte"
    lines.append(f"{arguments.dataset}: {f'{len(problems)} problems' if problems else 'sound'} ({kind})")
    found = {"sound": not problems, "problems": [asdict(problem) for problem in problems]}
    output.result({"dataset": arguments.dataset, "full": arguments.full, **found}, lines)
    return 1 if problems else 0
