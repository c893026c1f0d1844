"""The command `conceptloader inspect`."""

import argparse
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from conceptloader.base.arguments import add_dataset, positive, refuse_all_but, refuse_without
from conceptloader.base.terminal import counted, masked
from conceptloader.cli.output import Output, table
from conceptloader.cli.page import save_windows
from conceptloader.cli.window import describe
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.format.spec.columnfile import ColumnFile
from conceptloader.format.tools.stats import dataset_stats, heading, name_of, percentile_line
from conceptloader.ingest.records.tokenizer import find_tokenizer

DESCRIPTION = """\
Show windows, documents or ranges of tokens: their documents, text (if the tokenizer is known), and spans with concept
names. Without a position: a summary of the dataset.

  conceptloader inspect data/corpus
  conceptloader inspect data/corpus --window 12 --seq-len 512
  conceptloader inspect data/corpus --document a1
  conceptloader inspect data/corpus --document a1 --column teacher_ids
  conceptloader inspect data/corpus --random 3 --seq-len 128
  conceptloader inspect data/corpus --random 3 --documents --seed 7
  conceptloader inspect data/corpus --random 20 --seq-len 512 --html corpus.html
  conceptloader inspect data/corpus --stats --top 30

Spans are shown as [start, end); "<" instead of "[": it begins before the window, ">" instead of ")": it ends after it.
Window I consists of S + 1 tokens from token I * S on, as in training with `seq_len: S`.
--stats counts documents, tokens, spans and concepts: percentiles of the lengths of documents and spans, and for each
concept its spans and its share of all tokens. It reads documents and spans, but no tokens.
--html writes what is shown as one page, which needs no server and can be mailed: windows with their spans in colors.
"""


_SEQ_LEN = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument("--tokenizer", metavar="bytes|PATH", help="default: the dataset's copy, if any")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--window", type=int, metavar="I", help="window I of --seq-len S; of mode document: document I")
    place.add_argument("--document", metavar="ID", help="all documents with this id")
    place.add_argument("--document-number", type=int, metavar="N", help="document N of the dataset")
    place.add_argument("--tokens", metavar="A:B", help="tokens A to B - 1 of the dataset")
    place.add_argument("--random", type=positive, metavar="N", help="N windows of --seq-len S, or N --documents")
    place.add_argument("--stats", action="store_true", help="counts of documents, tokens, spans and concepts")
    parser.add_argument("--seq-len", type=positive, metavar="S", help="tokens per window (default: 128)")
    parser.add_argument("--documents", action="store_true", help="with --random: documents instead of windows")
    meaning = "show the values of this column, too (first 8 of a token; all with --json)"
    parser.add_argument("--column", action="append", default=[], metavar="NAME", help=meaning)
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="with --random: seed of the choice (default: 0)"
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with the windows instead")
    of_stats = parser.add_argument_group("with --stats").add_argument
    of_stats("--track", action="append", default=[], metavar="TRACK", help="default: all")
    of_stats("--top", type=positive, default=20, metavar="N", help="concepts shown (default: 20)")


def run(arguments: argparse.Namespace, output: Output) -> None:
    if arguments.stats:
        refuse_all_but("--stats", arguments, "dataset", "root", "track", "top")
        _show_stats(arguments, output)
        return
    refuse_without("--stats", arguments, "track", "top")
    if arguments.random is None:
        refuse_without("--random", arguments, "documents", "seed")
    with open_dataset(arguments.dataset, arguments.root) as dataset:
        places = _places(arguments, dataset)
        if places is None:
            refuse_without("--tokens", arguments, "column", "html", "seq_len")
            value = _overview(dataset)
            output.result(value, _tree(value))
            return
        if arguments.html is not None:
            save_windows(dataset, places, arguments, output)
            return
        tokenizer = find_tokenizer(dataset, arguments.tokenizer)
        values, text = [], list[str]()
        for name, start, stop in places:
            value, lines = describe(dataset, start, stop, tokenizer, arguments.column)
            values.append({"name": name, **value})
            text += [f"== {name}", *lines]
    output.result({"samples": values}, text)


def _show_stats(arguments: argparse.Namespace, output: Output) -> None:
    with open_dataset(arguments.dataset, arguments.root) as dataset:
        value = dataset_stats(dataset, arguments.track or None)
    output.result(value, _stats_lines(value, arguments.top))


def _stats_lines(value: Mapping[str, Any], top: int) -> Iterator[str]:
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


def _places(arguments: argparse.Namespace, dataset: Dataset) -> list[tuple[str, int, int]] | None:
    """(name, start, stop) of the tokens that are asked for, None for the whole dataset."""
    if arguments.document is not None:
        found = dataset.find_document(arguments.document)
        if not found:
            problem, expected = f"no document {arguments.document!r} in {dataset.path}", "an id of the input"
            raise ConfigError("--document", problem, expected, "pass --document with an id as the input has it")
        return [(f"document {arguments.document}", *dataset.document_range(number)) for number in found]
    if arguments.document_number is not None:
        return [(f"document number {arguments.document_number}", *dataset.document_range(arguments.document_number))]
    if arguments.tokens is not None:
        start, _, stop = arguments.tokens.partition(":")
        if not (start.isdecimal() and stop.isdecimal() and int(start) <= int(stop) <= dataset.num_tokens):
            expected, fix = f"A:B with A <= B <= {dataset.num_tokens}", "pass --tokens with such a range"
            raise ConfigError("--tokens", repr(arguments.tokens), expected, fix)
        return [(f"tokens {arguments.tokens}", int(start), int(stop))]
    if arguments.window is None and arguments.random is None:
        return None
    place: Callable[[int], tuple[int, int]]
    if arguments.documents or dataset.mode == "document":
        if arguments.seq_len is not None:
            problem, expected = f"{arguments.seq_len} with whole documents", "--seq-len with windows only"
            raise ConfigError("--seq-len", problem, expected, "omit --seq-len")
        kind, total, place = "document", dataset.num_documents, dataset.document_range
    else:
        windows = dataset.windows(arguments.seq_len or _SEQ_LEN, tracks=[])
        kind, total, place = "window", len(windows), windows.token_range
    chosen = [arguments.window]
    if arguments.random is not None:
        chosen = sorted(random.Random(arguments.seed).sample(range(total), min(arguments.random, total)))
    elif not 0 <= arguments.window < total:
        expected = f"a number from 0 to {total - 1}"
        raise ConfigError("--window", str(arguments.window), expected, "pass --window with such a number")
    return [(f"{kind} {number:,}", *place(number)) for number in chosen]


def _overview(dataset: Dataset) -> dict[str, object]:
    manifest = dataset.manifest
    return {
        "path": masked(dataset.path),
        "mode": dataset.mode,
        "tokens": dataset.num_tokens,
        "documents": dataset.num_documents,
        "shards": dataset.num_shards,
        "tokenizer": asdict(dataset.tokenizer) if dataset.tokenizer else None,
        "layouts": [[f"{name} {code}" for name, code in layout.fields] for layout in manifest.layouts],
        "tracks": {
            name: {
                "codec": track.codec,
                "levels": len(dataset.levels[name]),
                "records": dataset.records(name),
                "concepts": track.vocabulary.count if track.vocabulary else None,
                "groups": dict(track.vocabulary.groups) if track.vocabulary else {},
                "max_concepts_per_record": track.max_items,
            }
            for name, track in sorted(dataset.tracks.items())
        },
        "columns": {name: _column(dataset.columns[name]) for name in dataset.columns},
        "bytes": {
            kind: column.bytes for kind, column in sorted(dataset.files.kinds.items()) if (column.size > 0).any()
        },
        "created_by": manifest.created_by,
        "stream_fingerprint": dataset.stream_fingerprint,
        "tracks_fingerprint": dataset.tracks_fingerprint,
    }


def _column(column: ColumnFile) -> dict[str, object]:
    absent, holes = int((column.files.size < 0).sum()), column.holes
    return {
        "item": column.item,
        "shards_without": absent,
        "tokens_without": holes.tokens if holes else 0,
        "created_by": column.created_by,
        "fingerprint": column.fingerprint,
    }


def _tree(value: Mapping[str, object], depth: int = 0) -> Iterator[str]:
    for key, item in value.items():
        if isinstance(item, dict):
            yield f"{'  ' * depth}{key}:" + ("" if item else " none")
            yield from _tree(item, depth + 1)
        else:
            yield f"{'  ' * depth}{key}: {f'{item:,}' if isinstance(item, int) else item}"
