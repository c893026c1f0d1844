"""conceptloader inspect"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from conceptloader.base.terminal import masked
from conceptloader.cli import window
from conceptloader.cli.arguments import positive
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.ingest.rows.tokenizer import find_tokenizer

DESCRIPTION = """\
Show what a dataset holds at some place: documents, text (when the tokenizer is known), spans with their concepts by
name, and which bytes of which files reading it takes. Without a place: the dataset as a whole.

  conceptloader inspect data/corpus
  conceptloader inspect data/corpus --window 12 --seq-len 512
  conceptloader inspect data/corpus --document a1

A span is shown as [start, end); "<" instead of "[" means that it begins before the place, ">" that it ends after it.
Window i has the tokens from i * S on, S + 1 of them, as in training with `seq_len: S`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    window.add_arguments(parser)
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--window", type=int, metavar="I", help="window I of --seq-len S")
    place.add_argument("--document", metavar="ID", help="the documents that had this id in the input")
    place.add_argument("--document-number", type=int, metavar="N", help="document N of the dataset")
    place.add_argument("--tokens", metavar="A:B", help="tokens A to B - 1 of the dataset")
    parser.add_argument("--seq-len", type=positive, metavar="S")


def run(arguments: argparse.Namespace, output: Output) -> None:
    if (arguments.window is None) != (arguments.seq_len is None):
        raise ConfigError("inspect", "expected --window and --seq-len together")
    with open_dataset(arguments.dataset, arguments.root) as dataset:
        ranges = _ranges(arguments, dataset)
        if ranges is None:
            value = _overview(dataset)
            output.result(value, _tree(value))
            return
        tokenizer = find_tokenizer(dataset, arguments.tokenizer)
        found = [window.describe(dataset, start, stop, tokenizer) for start, stop in ranges]
    single = found[0] if arguments.document is None else {"id": arguments.document, "documents": found}
    output.result(single, (line for one in found for line in window.lines(one)))


def _ranges(arguments: argparse.Namespace, dataset: Dataset) -> list[tuple[int, int]] | None:
    """The token ranges that are asked for, None for the whole dataset."""
    if arguments.window is not None:
        windows = dataset.windows(arguments.seq_len, tracks=[])
        if not 0 <= arguments.window < len(windows):
            raise ConfigError("--window", str(arguments.window), f"one in [0, {len(windows)})")
        return [windows.token_range(arguments.window)]
    if arguments.document is not None:
        numbers = dataset.find_document(arguments.document)
        if not numbers:
            raise ConfigError(
                "--document", f"found no document {arguments.document!r} in {dataset.path}", fix="check the id"
            )
        return [dataset.document_range(number) for number in numbers]
    if arguments.document_number is not None:
        return [dataset.document_range(arguments.document_number)]
    if arguments.tokens is not None:
        start, _, stop = arguments.tokens.partition(":")
        if not (start.isdecimal() and stop.isdecimal() and int(start) <= int(stop) <= dataset.num_tokens):
            raise ConfigError("--tokens", repr(arguments.tokens), f"A:B with A <= B <= {dataset.num_tokens}")
        return [(int(start), int(stop))]
    return None


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
                "records": int(manifest.shards.tracks[name].records.sum()),
                "encodings": sorted({str(encoding) for encoding in manifest.shards.tracks[name].encoding}),
                "concepts": track.vocabulary.count if track.vocabulary else None,
                "max_concepts_per_record": track.max_items,
                "max_spans_per_window": {str(2**k): track.max_spans[k] for k in range(7, 18, 2)},
            }
            for name, track in sorted(dataset.tracks.items())
        },
        "bytes": {
            kind: int(column.size[column.size > 0].sum())
            for kind, column in sorted(manifest.shards.files.items())
            if (column.size > 0).any()
        },
        "created_by": manifest.created_by,
        "stream_fingerprint": dataset.stream_fingerprint,
        "tracks_fingerprint": dataset.tracks_fingerprint,
    }


def _tree(value: Mapping[str, object], depth: int = 0) -> Iterator[str]:
    for key, item in value.items():
        if isinstance(item, dict):
            yield f"{'  ' * depth}{key}:" + ("" if item else " none")
            yield from _tree(item, depth + 1)
        else:
            yield f"{'  ' * depth}{key}: {f'{item:,}' if isinstance(item, int) else item}"
