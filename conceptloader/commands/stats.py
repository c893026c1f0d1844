"""The command `conceptloader stats`."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from conceptloader.base.packages import need_add_on
from conceptloader.cli.arguments import add_dataset, positive
from conceptloader.cli.output import Output, save_picture, table
from conceptloader.format.read.dataset import open_dataset
from conceptloader.format.tools.stats import dataset_stats, heading, name_of, percentile_line

DESCRIPTION = """\
Count documents, tokens, spans and concepts: percentiles of the lengths of documents and spans, and for each concept its
spans and its share of all tokens. Reads documents and spans, but no tokens. Prints text or JSON; --plot draws them.

With --packing only: statistics of packs (docs/packing.md) for each choice of --seq-len and --bins: how many, their
fill, and the shares of documents that do not fit into one, and that windows would cut.

  conceptloader stats data/corpus --top 30 --plot corpus.png
  conceptloader stats data/corpus --packing --seq-len 2048 4096 --bins 16 64 256 --plot packing.png
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument("--track", action="append", metavar="TRACK", help="default: all")
    parser.add_argument("--top", type=positive, default=20, metavar="N", help="concepts shown (default: 20)")
    parser.add_argument("--plot", metavar="FILE", help="also plot the counts (.png, .svg, .pdf)")
    parser.add_argument("--packing", action="store_true", help="only statistics of packs")
    parser.add_argument(
        "--seq-len", type=positive, nargs="+", default=[2048, 4096, 8192], metavar="S", help="with --packing"
    )
    parser.add_argument("--bins", type=positive, nargs="+", default=[16, 64, 256], metavar="K", help="with --packing")


def run(arguments: argparse.Namespace, output: Output) -> None:
    with open_dataset(arguments.dataset, arguments.root) as dataset:
        if arguments.packing:
            from conceptloader.commands.packing import draw_packing, packing_lines, packing_stats

            choices = packing_stats(dataset, arguments.seq_len, arguments.bins)
            if arguments.plot is not None:
                draw_packing(choices, arguments.plot)
            output.result({"dataset": dataset.path, "packing": choices}, packing_lines(choices))
            return
        value = dataset_stats(dataset, arguments.track)
    if arguments.plot is not None:
        save_picture(
            need_add_on("conceptloader.viewer.plots", "--plot").figure_of(value, arguments.top), arguments.plot
        )
    output.result(value, _lines(value, arguments.top))


def _lines(value: Mapping[str, Any], top: int) -> Iterator[str]:
    yield from heading(value)
    for track, found in value["tracks"].items():
        yield ""
        yield f"track {track}: {found['spans']:,} spans over {found['tokens_in_spans']:.1%} of the tokens"
        yield f"span lengths  {percentile_line(found['span_lengths'])}"
        rows = [
            (name_of(concept), concept["spans"], concept["tokens"], f"{concept['share_of_tokens']:7.2%}")
            for concept in found["concepts"][:top]
        ]
        if rows:
            yield from table(rows, ("concept", "spans", "tokens", "share"))
        if len(found["concepts"]) > top:
            yield f"... and {len(found['concepts']) - top:,} more concepts (--top, or --json for all)"
