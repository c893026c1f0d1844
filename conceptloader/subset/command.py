"""The command `conceptloader filter`."""

import argparse

from conceptloader.cli.arguments import add_dataset, add_out, chosen, not_negative, read_ids, refuse_without, task
from conceptloader.cli.output import Output, progress_bar
from conceptloader.errors import ConfigError
from conceptloader.subset.views import FilterOptions, filter_dataset

DESCRIPTION = """\
Select documents or spans as a zero-copy subset: a small dataset that refers to documents of another one. It works like
any other dataset in blends, splits, commands and Python. Expressions: docs/subsets.md.

  conceptloader filter data/web --where "quality >= 0.7 and concepts:medicine" --out data/web-medicine
  conceptloader filter data/web --by quality:0,0.5,1 --out data/web    (data/web-0-0.5 and data/web-0.5-1)
  conceptloader filter data/web --where "share < 0.01" --seed 7 --out data/web-small
  conceptloader filter data/web --spans "concepts:medicine and not concepts:news" --out data/web-spans

On a cluster, run N jobs with --task K/N (K from 0), then the command without --task: the bytes are the same.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_dataset(parser)
    add_out(add)
    add("--where", metavar="EXPR", help="documents for which this is true: columns, concepts of any of their tokens")
    add("--sql", metavar="EXPR", help="the same, as a DuckDB expression, with its functions")
    add("--ids", metavar="FILE", help="only documents with these ids, one per line")
    add("--spans", metavar="EXPR", help="only the tokens for which this expression of concepts is true")
    add("--by", metavar="COLUMN", help="one subset per value of a column, or per interval: quality:0,0.5,1")
    add("--metadata", metavar="FILE", help="Parquet or JSONL with a row per document; adds its columns to expressions")
    add("--on", metavar="COLUMN", help="column of --metadata with the documents' ids (default: id)")
    add("--seed", type=not_negative, default=0, metavar="N", help="seed of the column share (default: 0)")
    add("--task", type=task, metavar="K/N", help="do only part K of N, and write no subset")


def run(arguments: argparse.Namespace, output: Output) -> None:
    if not any((arguments.where, arguments.sql, arguments.ids, arguments.spans, arguments.by)):
        raise ConfigError("filter", "nothing to select by", "--where, --sql, --ids, --spans or --by")
    refuse_without("--metadata", arguments, "on")
    ids = None if arguments.ids is None else read_ids("--ids", arguments.ids)
    ask = FilterOptions(ids=ids, **chosen(arguments, "where", "sql", "spans", "by", "metadata", "on", "seed"))
    roots, task = arguments.root, arguments.task
    with progress_bar(arguments.quiet, "chunk") as progress:
        found = filter_dataset(arguments.dataset, arguments.out, ask, roots=roots, task=task, progress=progress)
    if arguments.task is not None:
        output.result({"task": arguments.task}, [f"{arguments.out}: the part of this task is written"])
        return
    lines = [f"{path}: {documents:,} documents, {tokens:,} tokens" for path, (documents, tokens) in found.views.items()]
    lines += [f"{found.unknown:,} documents for which the expression is null"] if found.unknown else []
    lines += [f"{found.without_view:,} documents that are in no subset"] if found.without_view else []
    lines += [] if ids is None else [f"{found.with_id:,} documents with one of {len(ids):,} ids"]
    lines += [f"{found.with_row:,} documents with a row of {arguments.metadata}"] if arguments.metadata else []
    views = [{"path": path, "documents": d, "tokens": t} for path, (d, t) in found.views.items()]
    output.result({**vars(found), "views": views}, lines)
