"""Counts of a dataset: `conceptloader inspect --stats`."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from conceptloader.base.terminal import counted
from conceptloader.cli.output import Output, table
from conceptloader.format.read.dataset import open_dataset
from conceptloader.format.tools.stats import dataset_stats, heading, name_of, percentile_line


def show_stats(arguments: argparse.Namespace, output: Output) -> None:
    with open_dataset(arguments.dataset, arguments.root) as dataset:
        value = dataset_stats(dataset, arguments.track or None)
    output.result(value, _lines(value, arguments.top))


def _lines(value: Mapping[str, Any], top: int) -> Iterator[str]:
    yield from heading(value)
    for track, found in value["tracks"].items():
        yield ""
        yield f"track {track}: {counted(found['spans'], 'span')} over {found['tokens_in_spans']:.1%} of the tokens"
        yield f"span lengths  {percentile_line(found['span_lengths'])}"
        rows = [
            (name_of(concept), concept["spans"], concept["tokens"], f"{concept['share_of_tokens']:7.2%}")
            for concept in found["concepts"][:top]
        ]
        if rows:
            yield from table(rows, ("concept", "spans", "tokens", "share"))
        if len(found["concepts"]) > top:
            yield f"... and {counted(len(found['concepts']) - top, 'more concept')} (--top, or --json for all)"
