"""The command `conceptloader subset`."""

import argparse

from conceptloader.base.terminal import counted
from conceptloader.cli.arguments import (
    add_out,
    add_root,
    chosen,
    not_negative,
    read_ids,
    refuse_beside,
    refuse_without,
    task,
)
from conceptloader.cli.output import Output, progress_bar
from conceptloader.errors import ConfigError
from conceptloader.format.tools.concat import concat
from conceptloader.subset.views import SubsetOptions, make_subsets

DESCRIPTION = """\
Write a small dataset that refers to tokens of others, which must stay in place: documents or spans of one, or all of
several, in the given order. Nothing is copied, and it works like any other dataset in blends, splits, commands and
Python. Expressions: docs/subsets.md.

  conceptloader subset data/web --where "quality >= 0.7 and concepts:medicine" --out data/web-medicine
  conceptloader subset data/web --by quality:0,0.5,1 --out data/web    (data/web-0-0.5 and data/web-0.5-1)
  conceptloader subset data/web --where "share < 0.01" --seed 7 --out data/web-small
  conceptloader subset data/web --spans "concepts:medicine and not concepts:news" --out data/web-spans
  conceptloader subset data/books data/code --out data/all

On a cluster, run N jobs with --task K/N (K from 0), then the command without --task: the bytes are the same.
"""

_OF_ONE = "where", "ids", "spans", "by", "metadata", "on", "seed", "task"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("datasets", nargs="+", metavar="DATASET", help="directory of a dataset; several are concatenated")
    add_out(add)
    add_root(add, " (of several datasets by default: their parents)")
    add("--allow-mixed-tokenizers", action="store_true", help="accept several datasets of different tokenizers")
    add(
        "--where",
        metavar="EXPR",
        help="documents for which this SQL is true: columns, concepts of any of their tokens",
    )
    add("--ids", metavar="FILE", help="only documents with these ids, one per line")
    add("--spans", metavar="EXPR", help="only the tokens for which this expression of concepts is true")
    add("--by", metavar="COLUMN", help="one subset per value of a column, or per interval: quality:0,0.5,1")
    add("--metadata", metavar="FILE", help="Parquet or JSONL with a row per document; adds its columns to expressions")
    add("--on", metavar="COLUMN", help="column of --metadata with the documents' ids (default: id)")
    add("--seed", type=not_negative, default=0, metavar="N", help="seed of the column share (default: 0)")
    add("--task", type=task, metavar="K/N", help="do only part K of N, and write no subset")


def run(arguments: argparse.Namespace, output: Output) -> None:
    if len(arguments.datasets) > 1:
        refuse_beside(f"{len(arguments.datasets)} datasets", arguments, *_OF_ONE)
        manifest = concat(arguments.datasets, arguments.out, arguments.root, arguments.allow_mixed_tokenizers)
        output.manifest(arguments.out, manifest)
        return
    refuse_beside("one dataset", arguments, "allow_mixed_tokenizers")
    if not any((arguments.where, arguments.ids, arguments.spans, arguments.by)):
        raise ConfigError(
            "subset",
            "nothing to select by",
            "--where, --ids, --spans or --by",
            "add --where EXPR, --ids FILE, --spans EXPR or --by COLUMN",
        )
    refuse_without("--metadata", arguments, "on")
    ids = None if arguments.ids is None else read_ids("--ids", arguments.ids)
    ask = SubsetOptions(ids=ids, **chosen(arguments, "where", "spans", "by", "metadata", "on", "seed"))
    roots, task = arguments.root, arguments.task
    with progress_bar(arguments.quiet, "chunk") as progress:
        found = make_subsets(arguments.datasets[0], arguments.out, ask, roots=roots, task=task, progress=progress)
    if arguments.task is not None:
        output.result({"task": arguments.task}, [f"{arguments.out}: the part of this task is written"])
        return
    lines = [
        f"{path}: {counted(documents, 'document')}, {counted(tokens, 'token')}"
        for path, (documents, tokens) in found.views.items()
    ]
    lines += [f"{counted(found.unknown, 'document')} for which the expression is null"] if found.unknown else []
    lines += [f"{counted(found.without_view, 'document')} in no subset"] if found.without_view else []
    lines += [] if ids is None else [f"{counted(found.with_id, 'document')} with one of {counted(len(ids), 'id')}"]
    lines += [f"{counted(found.with_row, 'document')} with a row of {arguments.metadata}"] if arguments.metadata else []
    views = [{"path": path, "documents": d, "tokens": t} for path, (d, t) in found.views.items()]
    output.result({**vars(found), "views": views}, lines)
