"""The command `conceptloader annotate`."""

import argparse
import os

from conceptloader.base.arguments import (
    add_dataset,
    add_max_line_bytes,
    add_out,
    add_pairs,
    chosen,
    json_object,
    refuse_beside,
    size,
)
from conceptloader.base.options import add_options, options_of
from conceptloader.base.terminal import counted
from conceptloader.cli import building as building
from conceptloader.cli.output import Output
from conceptloader.cli.recipe import add_recipe
from conceptloader.errors import ConfigError
from conceptloader.ingest.align.rules import SpanAlignment
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.build.unaligned import Losses, TrackLoss
from conceptloader.ingest.records.documents import number_type
from conceptloader.ingest.records.tokenizer import load_tokenizer
from conceptloader.ingest.records.vocabulary import load_vocabulary

DESCRIPTION = """\
Add a track to a dataset: concepts, quality scores, sources. The new dataset refers to the tokens and tracks of DATASET,
which is neither copied nor changed. Adopted datasets work too.

Annotations are rows of JSONL (.gz, .zst) or Parquet, in any order. A row names a document, by its id in the input
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
"""

USAGE = "DATASET INPUT [INPUT ...] --track NAME|--number NAME:TYPE --out DIR [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_dataset(parser)
    add("inputs", nargs="+", metavar="INPUT", help="files of annotations, or directories of files")
    add_out(add)
    add_recipe(parser)

    group = parser.add_argument_group("the track").add_argument
    group("--track", metavar="NAME", help="name of the new track")
    meaning = "instead of --track: a track of the number in this column, such as quality:f4 or quality:f4=none"
    add_pairs(group, "--number", "NAME:TYPE", meaning)
    group("--codec", choices=["concepts", "numpy", "json"], default="concepts")
    group("--parameters", type=json_object, default={}, metavar="JSON", help='of the codec, such as {"dtype": "f4"}')
    group("--vocabulary", metavar="FILE", help="names of the concepts, one per line or a JSON list")
    add_options(parser, SpanAlignment)

    group = parser.add_argument_group("annotations").add_argument
    group("--tokenizer", metavar="bytes|PATH", help="of the dataset's build (default: its copy in the dataset)")
    group("--ignore-column", action="append", default=[], metavar="NAME", help="do not read this column")
    meaning = "name of id, document, spans, start, end, concepts, scores, surface, value"
    add_pairs(group, "--column", "OURS=THEIRS", meaning, ", such as id=doc_id or concepts=label")
    group("--sort-memory", type=size, default=size("96M"), metavar="SIZE", help="memory for sorting (default: 96M)")
    add_max_line_bytes(group)
    building.add_bad_records(group, "skip rows that cannot be read, and list")


def run(arguments: argparse.Namespace, output: Output) -> int:
    _track(arguments)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    options = AnnotateOptions(
        vocabulary=load_vocabulary(arguments.vocabulary) if arguments.vocabulary is not None else None,
        tokenizer=load_tokenizer(arguments.tokenizer, ends=False) if arguments.tokenizer is not None else None,
        ignored=arguments.ignore_column,
        columns=dict(arguments.column),
        sort_bytes=arguments.sort_memory,
        **options_of(arguments, SpanAlignment),
        **chosen(arguments, "track", "codec", "parameters", "max_line_bytes", "missing"),
    )
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
    }
    unit = f", offsets in {done['unit']}" if done["unit"] else ", of whole documents"
    lines = [
        f"{arguments.out}: {counted(records, 'record')} of {arguments.track} over "
        f"{counted(manifest.num_tokens, 'token')}{unit}"
    ]
    if bad := done.get("bad_rows"):
        lines.append(f"{bad:,} rows could not be read and were skipped, see {arguments.bad_records}")
    lines += Losses({arguments.track: TrackLoss(**done["loss"])}).lines()
    output.result(value, lines)
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
    arguments.missing = None
    for name, dtype in arguments.number:
        refuse_beside("--number", arguments, "codec", "parameters", "vocabulary")
        code, arguments.missing = number_type(dtype)
        arguments.track, arguments.codec, arguments.parameters = name, "numpy", {"dtype": code}
        arguments.column = [("value", name), *arguments.column]
