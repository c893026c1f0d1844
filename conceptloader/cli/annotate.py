"""The command `conceptloader annotate`."""

import argparse
import os

from conceptloader.base.arguments import add_dataset, add_out
from conceptloader.base.options import add_options, options_of
from conceptloader.base.terminal import counted
from conceptloader.cli import building as building
from conceptloader.cli.output import Output
from conceptloader.cli.recipe import add_recipe
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.build.unaligned import Losses, TrackLoss

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
  conceptloader annotate data/web --recipe annotate.yaml    # the options in a YAML file

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

    add_options(parser, AnnotateOptions)
    building.add_bad_records(add, "skip rows that cannot be read, and list")


def run(arguments: argparse.Namespace, output: Output) -> int:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    options = options_of(arguments, AnnotateOptions)
    with building.bad_records(arguments.bad_records) as on_bad:
        manifest = annotate(
            arguments.dataset, arguments.inputs, arguments.out, roots=arguments.root, on_bad=on_bad, **options
        )
    track = next(iter(options["number"]), options["track"])
    records = sum(manifest.shards.tracks[track].records.tolist())
    done = manifest.extra["annotated"][track]
    value = {
        "path": os.path.abspath(arguments.out),
        "track": track,
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
        f"{arguments.out}: {counted(records, 'record')} of {track} over {counted(manifest.num_tokens, 'token')}{unit}"
    ]
    if bad := done.get("bad_rows"):
        lines.append(f"{bad:,} rows could not be read and were skipped, see {arguments.bad_records}")
    lines += Losses({track: TrackLoss(**done["loss"])}).lines()
    output.result(value, lines)
    return 0
