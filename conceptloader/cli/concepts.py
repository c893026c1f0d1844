"""conceptloader concepts"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from conceptloader.base.terminal import printable
from conceptloader.cli.arguments import add_dataset, positive
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import open_dataset

DESCRIPTION = """\
Show the concepts of a dataset whose name, group or any detail (description, taxonomy, original id) holds a text, in any
case; without --search, the groups with their numbers. To count how often concepts occur, see `conceptloader stats`.

  conceptloader concepts data/atlas --search astronomy
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument("--track", metavar="TRACK", help="default: all with a vocabulary")
    parser.add_argument("--search", metavar="TEXT")
    parser.add_argument("--top", type=positive, default=20, metavar="N", help="concepts to show (default: 20)")


def run(arguments: argparse.Namespace, output: Output) -> None:
    with open_dataset(arguments.dataset, arguments.root) as dataset:
        named = [track for track, entry in dataset.tracks.items() if entry.vocabulary is not None]
        tracks = named if arguments.track is None else [arguments.track]
        if not tracks:
            raise ConfigError(dataset.path, "no track with a vocabulary", "one", "its concepts are ids")
        value: dict[str, Any] = {"dataset": dataset.path, "tracks": {}}
        for track in tracks:
            known = dataset.concepts(track)
            groups = [list(group) for group in dataset.tracks[track].vocabulary.groups]  # type: ignore[union-attr]
            found = [asdict(one) for one in known if arguments.search and _holds(asdict(one), arguments.search)]
            value["tracks"][track] = {"concepts": len(known), "groups": groups, "found": found}
    output.result(value, _lines(value, arguments.search, arguments.top))


def _holds(value: Any, wanted: str) -> bool:
    if isinstance(value, (dict, list)):
        return any(_holds(item, wanted) for item in (value.values() if isinstance(value, dict) else value))
    return wanted.casefold() in str(value).casefold()


def _lines(value: dict[str, Any], search: str | None, top: int) -> Iterator[str]:
    for track, entry in value["tracks"].items():
        groups = ", ".join(f"{name} {n:,}" for name, n in entry["groups"])
        yield f"track {track}: {entry['concepts']:,} concepts" + (f" ({groups})" if groups else "")
        if search is None:
            continue
        for one in entry["found"][:top]:
            yield f"  {one['id']}: {printable(one['name'], 60)}" + (f" [{one['group']}]" if one["group"] else "")
            for name, detail in one["details"].items():
                yield f"      {name}: {printable(str(detail), 100)}"
        rest = len(entry["found"]) - top
        yield f"  {len(entry['found']):,} with {search!r}" + (f", {rest:,} not shown (--top)" if rest > 0 else "")
