"""conceptloader index"""

import argparse

from conceptloader.cli.arguments import add_dataset, chosen, positive, task
from conceptloader.cli.output import Output, progress_bar, table
from conceptloader.errors import ConfigError
from conceptloader.format.index import ConceptIndex
from conceptloader.ingest.index import build_index

DESCRIPTION = """\
Write, beside the dataset, which spans carry each concept of a track, so that `conceptloader locate --concept` and
`exposure` need not read the track. An index that is there is only answered from.

  conceptloader index data/corpus --workers 8
  conceptloader index data/corpus --top 20
  conceptloader index data/corpus --together animal food plant

Restartable: the same command goes on where it was interrupted. On a cluster, --task K/N in each of N jobs writes the
shards of job K (from 0), and the command without --task joins them: the bytes are the same in any way.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add = parser.add_argument
    add("--track", default="concepts", metavar="NAME", help="a track of concepts (default: concepts)")
    add("--workers", type=positive, default=1, metavar="N", help="processes (default: 1)")
    add("--task", type=task, metavar="K/N", help="write only the shards of task K of N, and join nothing")
    add("--rebuild", action="store_true", help="remove the index that is there first")
    add("--top", type=positive, default=10, metavar="N", help="print the N most frequent concepts (default: 10)")
    add("--together", nargs="+", metavar="NAME", help="print how many tokens carry both of these concepts, by pairs")


def run(arguments: argparse.Namespace, output: Output) -> None:
    with progress_bar(arguments.quiet) as progress:
        options = chosen(arguments, "track", "workers", "task", "anew")
        index = build_index(arguments.dataset, roots=arguments.root, progress=progress, **options)
    if index is None:
        output.result({"task": arguments.task}, [f"{arguments.dataset}: the shards of this task are written"])
    elif arguments.together:
        _together(index, arguments.together, output)
    else:
        _counts(index, arguments.top, output)


def _counts(index: ConceptIndex, top: int, output: Output) -> None:
    names = index.dataset.vocabulary(index.track)
    concepts, spans, tokens = index.counts()
    rows = [
        [int(concepts[at]), names[concepts[at]] if names else "", int(spans[at]), int(tokens[at])]
        for at in tokens.argsort(kind="stable")[::-1][:top]
    ]
    keys = ["id", "concept", "spans", "tokens"]
    value = {
        "concepts": len(concepts),
        "spans": int(spans.sum()),
        "top": [dict(zip(keys, row, strict=True)) for row in rows],
    }
    output.result(value, [f"{len(concepts):,} concepts, {value['spans']:,} spans that carry one", *table(rows, keys)])


def _together(index: ConceptIndex, asked: list[str], output: Output) -> None:
    names = index.dataset.vocabulary(index.track)
    ids = []
    for name in asked:
        if names is not None and name in names:
            ids.append(names.index(name))
        elif names is None and name.isdecimal():
            ids.append(int(name))
        else:
            raise ConfigError("--together", repr(name), f"names of concepts of track {index.track}")
    counts = index.together(ids).tolist()
    rows = [[name, *row] for name, row in zip(asked, counts, strict=True)]
    output.result({"concepts": asked, "tokens": counts}, table(rows, ["tokens with both", *asked]))
