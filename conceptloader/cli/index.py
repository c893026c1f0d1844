"""The command `conceptloader index`."""

import argparse

from conceptloader.base.arguments import add_dataset, chosen, positive, task
from conceptloader.base.terminal import counted
from conceptloader.cli.output import Output, progress_bar, table
from conceptloader.errors import ConfigError
from conceptloader.format.read.index import ConceptIndex
from conceptloader.trace.index import build_index

DESCRIPTION = """\
Build the concept index of a track, in the dataset's directory: which spans carry each concept. With it, `conceptloader
locate --concept` need not read the track. An existing index is reused.

  conceptloader index data/corpus --workers 8
  conceptloader index data/corpus --top 20
  conceptloader index data/corpus --together animal food plant

If interrupted, run the same command again. On a cluster, run N jobs with --task K/N (K from 0), then the command
without --task: the bytes are the same.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add = parser.add_argument
    add("--track", default="concepts", metavar="NAME", help="track to index (default: concepts)")
    add("--workers", type=positive, default=1, metavar="N", help="processes (default: 1)")
    add("--task", type=task, metavar="K/N", help="do only part K of N of the shards")
    add("--rebuild", action="store_true", help="remove an existing index first")
    add("--top", type=positive, default=10, metavar="N", help="print the N most frequent concepts (default: 10)")
    add("--together", nargs="+", metavar="NAME", help="print how many tokens carry both concepts, for each pair")


def run(arguments: argparse.Namespace, output: Output) -> None:
    with progress_bar(arguments.quiet) as progress:
        options = chosen(arguments, "track", "workers", "task")
        index = build_index(
            arguments.dataset, roots=arguments.root, rebuild=arguments.rebuild, progress=progress, **options
        )
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
    output.result(
        value,
        [f"{counted(len(concepts), 'concept')}, {counted(int(spans.sum()), 'span')} with concepts", *table(rows, keys)],
    )


def _together(index: ConceptIndex, asked: list[str], output: Output) -> None:
    names = index.dataset.vocabulary(index.track)
    ids = []
    for name in asked:
        if names is not None and name in names:
            ids.append(names.index(name))
        elif names is None and name.isdecimal():
            ids.append(int(name))
        else:
            raise ConfigError(
                "--together",
                repr(name),
                f"names of concepts of track {index.track}",
                "correct --together: `conceptloader index --top N` prints names",
            )
    counts = index.together(ids).tolist()
    rows = [[name, *row] for name, row in zip(asked, counts, strict=True)]
    output.result({"concepts": asked, "tokens": counts}, table(rows, ["tokens with both", *asked]))
