"""The command `conceptloader annotate`."""

import argparse
import os

from conceptloader.base.terminal import counted
from conceptloader.cli.arguments import (
    SPAN_RULES,
    add_dataset,
    add_max_line_bytes,
    add_out,
    add_pairs,
    add_span_rules,
    chosen,
    json_object,
    refuse_beside,
    size,
)
from conceptloader.cli.output import Output
from conceptloader.cli.recipe import add_recipe
from conceptloader.errors import ConfigError
from conceptloader.ingest.annotate.annotate import AnnotateOptions, annotate
from conceptloader.ingest.build import arguments as building
from conceptloader.ingest.build.unaligned import Losses, TrackLoss
from conceptloader.ingest.records.tokenizer import load_tokenizer
from conceptloader.ingest.records.vocabulary import load_vocabulary

DESCRIPTION = """\
Add a track to a dataset: concepts, quality scores, sources. The new dataset refers to the tokens and tracks of DATASET,
which is neither copied nor changed. Adopted datasets work too.

Annotations are rows of JSONL (.gz, .zst), CSV or Parquet, in any order. A row names a document, by its id in the input
of the build or by its number, and annotates a range of its tokens, or all of them:

  {"id": "a1", "spans": [{"start": 3, "end": 8, "concepts": ["animal"]}]}
  {"id": "a1", "start": 10, "end": 12, "concepts": ["food", "red"]}
  {"document": 12, "value": 0.93}

The value is `concepts` for codec concepts, and `value` for other codecs. Documents may have no row. Other column names:
--column id=doc_id --column start=begin --column concepts=label (a list, or one concept).

  conceptloader annotate data/web spans.jsonl --track concepts --vocabulary concepts.txt --out data/web-concepts
  conceptloader annotate data/web quality.parquet --track quality --codec numpy --parameters '{"dtype": "f4"}' --out q
  conceptloader annotate data/web scores.jsonl --number quality:f4 --column id=doc_id --out data/web-quality
  conceptloader annotate data/web --recipe annotate.yaml    # `init data/web spans.jsonl --out annotate.yaml` writes one

Offsets are in characters (Unicode code points) of the document's text if the dataset was built from text, else in
tokens. --span-unit states which; it is required where both are possible. The text is decoded from the tokens, which
works for tokenizers that reproduce every text exactly.

A recipe (--recipe) with `chunks`, as in build, reads files with a row per chunk of a document. INPUT are then the
documents, whose text (or tokens) must be that of the dataset (docs/annotations.md).
"""

USAGE = "DATASET INPUT [INPUT ...] --track NAME|--number NAME:TYPE --out DIR [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_dataset(parser)
    add("inputs", nargs="+", metavar="INPUT", help="files of annotations, or directories of files")
    add_out(add)
    add_recipe(parser)
    building.add_split(add)
    building.add_workers(add)

    group = parser.add_argument_group("the track").add_argument
    group("--track", metavar="NAME", help="name of the new track")
    meaning = "instead of --track: a track of the number in this column, such as quality:f4"
    add_pairs(group, "--number", "NAME:TYPE", meaning)
    group("--codec", choices=["concepts", "numpy", "msgpack", "json"], default="concepts")
    group("--parameters", type=json_object, default={}, metavar="JSON", help='of the codec, such as {"dtype": "f4"}')
    group("--vocabulary", metavar="FILE", help="names of the concepts, one per line or a JSON list")
    add_span_rules(group)

    group = parser.add_argument_group("annotations").add_argument
    group("--tokenizer", metavar="bytes|PATH", help="of the dataset's build (default: its copy in the dataset)")
    group("--ignore-column", action="append", default=[], metavar="NAME", help="do not read this column")
    meaning = "name of id, document, spans, start, end, concepts, scores, surface, value; with chunks: text, tokens"
    add_pairs(group, "--column", "OURS=THEIRS", meaning, ", such as id=doc_id or concepts=label")
    group("--sort-memory", type=size, default=size("96M"), metavar="SIZE", help="memory for sorting (default: 96M)")
    add_max_line_bytes(group)
    building.add_bad_records(group, "skip rows that cannot be read, and invalid chunks, and list")
    group = parser.add_argument_group("documents with chunks").add_argument
    building.add_chunks(group)


def run(arguments: argparse.Namespace, output: Output) -> int:
    _track(arguments)
    if arguments.chunks is not None:
        refuse_beside("chunks", arguments, "ignore_column", "parameters")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    options = AnnotateOptions(
        vocabulary=load_vocabulary(arguments.vocabulary) if arguments.vocabulary is not None else None,
        tokenizer=load_tokenizer(arguments.tokenizer, ends=False) if arguments.tokenizer is not None else None,
        ignored=arguments.ignore_column,
        columns=dict(arguments.column) if arguments.chunks is None else {},
        sort_bytes=arguments.sort_memory,
        **chosen(arguments, *SPAN_RULES, "track", "codec", "parameters", "max_line_bytes", "split"),
    )
    joined = None
    if arguments.chunks is not None:
        manifest, joined = building.with_chunks().annotate(arguments, options)
    else:
        with building.bad_records(arguments.bad_records) as on_bad:
            manifest = annotate(arguments.dataset, arguments.inputs, arguments.out, options, arguments.root, on_bad)
    records = sum(manifest.shards.tracks[arguments.track].records.tolist())
    done = manifest.extra["annotated"][arguments.track]
    value = {
        "path": os.path.abspath(arguments.out),
        "track": arguments.track,
        "tracks": sorted(manifest.tracks),
        "records": records,
        "documents": manifest.num_documents,
        "tokens": manifest.num_tokens,
        "tracks_fingerprint": manifest.tracks_fingerprint(),
        "unit": done["unit"],
        "loss": done["loss"],
        "bad_rows": done.get("bad_rows", 0),
        **({"chunks": joined.to_json()} if joined else {}),
    }
    unit = f", offsets in {done['unit']}" if done["unit"] else ", of whole documents"
    lines = [
        f"{arguments.out}: {counted(records, 'record')} of {arguments.track} over "
        f"{counted(manifest.num_tokens, 'token')}{unit}"
    ]
    if bad := done.get("bad_rows"):
        lines.append(f"{bad:,} rows could not be read and were skipped, see {arguments.bad_records}")
    lines += Losses({arguments.track: TrackLoss(**done["loss"])}).lines()
    output.result(value, lines + (joined.lines() if joined else []))
    return 0


def _track(arguments: argparse.Namespace) -> None:
    """What --number stands for. Raises: ConfigError."""
    if len(arguments.number) + (arguments.track is not None) != 1:
        raise ConfigError(
            "annotate",
            f"{'neither' if arguments.track is None else 'several'} of --track and --number",
            "either --track or one --number",
            "pass --track NAME, or --number NAME:TYPE once",
        )
    for name, dtype in arguments.number:
        refuse_beside("--number", arguments, "codec", "parameters", "vocabulary", "chunks")
        arguments.track, arguments.codec, arguments.parameters = name, "numpy", {"dtype": dtype}
        arguments.column = [("value", name), *arguments.column]
