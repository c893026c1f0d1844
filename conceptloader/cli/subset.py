"""The command `conceptloader subset`."""

import argparse
import json
import os

from conceptloader.base.arguments import (
    add_root,
    chosen,
    not_negative,
    positive,
    read_ids,
    refuse_beside,
    refuse_without,
)
from conceptloader.base.terminal import counted
from conceptloader.cli.output import Output, progress_bar
from conceptloader.errors import ConfigError
from conceptloader.format.tools.concat import concat
from conceptloader.trace.subset import SubsetOptions, make_ranges, make_subsets

DESCRIPTION = """\
Write a small dataset that refers to tokens of others, which must stay in place: documents or spans of one, or all of
several, in the given order. Nothing is copied, and it works like any other dataset in blends, splits, commands and
Python. Expressions: docs/subsets.md.

  conceptloader subset data/web --where "quality >= 0.7 and 'medicine' in concepts" --out data/web-medicine
  conceptloader subset data/web --by "metadata->>'domain'" --out data/by    (data/by-news, data/by-wiki)
  conceptloader subset data/web --table t=domains.parquet --where "id in (select id from t where domain = 'news')"
    --out data/web-news
  conceptloader subset data/web --where "share < 0.01" --seed 7 --out data/web-small
  conceptloader subset data/web --spans "'medicine' in concepts and 'news' not in concepts" --out data/web-spans
  conceptloader subset data/web --by quality --epochs "0.4:0, 1:7" --out data/web-quality    (prints the datasets)
  conceptloader subset data/books data/code --out data/all

With --ranges, write a list of their tokens for `exclude` instead:

  conceptloader subset data/web --spans "'medicine' in concepts" --ranges medicine.txt
"""

_OF_ONE = "where", "ids", "spans", "by", "buckets", "epochs", "table", "seed", "ranges"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("datasets", nargs="+", metavar="DATASET", help="directory of a dataset; several are concatenated")
    to = parser.add_mutually_exclusive_group(required=True).add_argument
    to("--out", metavar="DIR", help="directory of the new dataset")
    to("--ranges", metavar="FILE", help="a list of their tokens, for `exclude`")
    add_root(add, " (of several datasets by default: their parents)")
    add("--allow-mixed-tokenizers", action="store_true", help="accept several datasets of different tokenizers")
    add("--where", metavar="SQL", help="documents for which this is true: columns, concepts of any of their tokens")
    add("--ids", metavar="FILE", help="only documents with these ids, one per line")
    add("--spans", metavar="SQL", help="only the tokens for which this is true: 'NAME' in TRACK, and, or, not")
    add("--by", metavar="SQL", help="one subset per value of this, such as metadata->>'domain'")
    add("--buckets", type=positive, default=20, metavar="N", help="--epochs: subsets by ascending --by (default: 20)")
    add("--epochs", metavar="CURVE", help='how often to read each: with "0.4:0, 1:7" never up to the quantile 0.4')
    add(
        "--table", action="append", default=[], metavar="NAME=FILE", help="a Parquet file that --where and --by may ask"
    )
    add("--seed", type=not_negative, default=0, metavar="N", help="seed of the column share (default: 0)")


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
            "add --where SQL, --ids FILE, --spans SQL or --by SQL",
        )
    refuse_without("--epochs", arguments, "buckets")
    refuse_without("--by", arguments, "epochs")
    ids = None if arguments.ids is None else read_ids("--ids", arguments.ids)
    same = chosen(arguments, "where", "spans", "by", "buckets", "epochs", "seed")
    ask = SubsetOptions(ids=ids, tables=arguments.table, **same)
    make, to, what = (
        (make_subsets, arguments.out, "document") if arguments.out else (make_ranges, arguments.ranges, "range")
    )
    with progress_bar(arguments.quiet, "chunk") as progress:
        found = make(arguments.datasets[0], to, ask, roots=arguments.root, progress=progress)
    lines = [f"{path}: {counted(n, what)}, {counted(tokens, 'token')}" for path, (n, tokens) in found.views.items()]
    lines += [f"{counted(found.unknown, 'document')} for which the expression is null"] if found.unknown else []
    lines += [f"{counted(found.without_view, 'document')} in no subset"] if found.without_view else []
    lines += [] if ids is None else [f"{counted(found.with_id, 'document')} with one of {counted(len(ids), 'id')}"]
    if found.epochs:
        lines += ["# read so often in a run of as many samples as all have windows, times their epochs", "datasets:"]
        lines += [
            f"  {os.path.basename(path)}: {{path: {json.dumps(path)}, epochs: {epochs:g}}}"
            for path, epochs in zip(found.views, found.epochs, strict=True)
        ]
    views = [{"path": path, f"{what}s": n, "tokens": tokens} for path, (n, tokens) in found.views.items()]
    output.result({**vars(found), "views": views}, lines)
