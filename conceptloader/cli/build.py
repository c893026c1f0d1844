"""The command `conceptloader build`."""

import argparse
from dataclasses import asdict

from conceptloader.base.options import add_options, options_of
from conceptloader.base.terminal import counted
from conceptloader.cli import building as building
from conceptloader.cli.output import Output
from conceptloader.cli.recipe import add_recipe
from conceptloader.errors import ConfigError
from conceptloader.ingest.build.builder import build_dataset
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.build.trial import estimate
from conceptloader.ingest.records.inputs import find_sources

DESCRIPTION = """\
Build a dataset from text with spans, or from tokens with spans. A record is one document: a line of JSONL (.gz, .zst),
or a row of Parquet. start and end are in characters (Unicode code points) of the text, or in tokens.

  {"id": "a1", "text": "A cat sat.", "spans": [{"start": 2, "end": 5, "concepts": ["animal"]}]}
  {"id": "a2", "tokens": [5, 7, 9],  "spans": [{"start": 0, "end": 2, "concepts": [17]}]}

A column spans_<track> becomes another track of concepts; metadata (an object) becomes a track of document metadata.
With --chat, records are conversations (docs/conversations.md). --recipe reads options from a YAML file.

  conceptloader build --recipe build.yaml    # `conceptloader init corpus.parquet --out build.yaml` writes one
  conceptloader build corpus/ --out data/corpus --tokenizer tokenizer.json --vocabulary concepts.txt
  conceptloader build tokens.parquet --out data/tokens --vocab-size 50257 --eos 50256 --workers 8
  conceptloader build chats.jsonl --out data/chats --tokenizer model/ --chat --max-tokens 8192

If interrupted, run the same command again: finished shards are kept. The result does not depend on --workers.
"""

USAGE = "INPUT [INPUT ...] --out DIR [options]"
COMMON = (
    "--out", "--tokenizer", "--vocabulary", "--column", "--ignore-column", "--span-unit", "--workers", "--bad-records",
    "--dry-run", "--recipe",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("inputs", nargs="*", metavar="INPUT", help="files, or directories of files")
    add("--out", metavar="DIR", help="directory of the new dataset")
    building.add_workers(add)
    add_options(parser, Options)
    building.add_bad_records(add)
    meaning = "say what there will be, by the first rows"
    add("--dry-run", action="store_true", help=meaning)
    add_recipe(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    tokens = arguments.tokenizer or arguments.vocab_size
    wanted = {"INPUT": arguments.inputs, "--out": arguments.out, "--tokenizer (or --vocab-size)": tokens}
    if missing := [name for name, value in wanted.items() if not value]:
        raise ConfigError(
            "build",
            f"no {', no '.join(missing)}",
            "each on the command line or in the --recipe",
            "add what is missing, as in conceptloader build corpus.jsonl --out data/corpus --tokenizer tokenizer.json",
        )
    sources = find_sources(arguments.inputs)
    options = Options(**options_of(arguments, Options))
    if arguments.dry_run:
        room, tried = estimate(sources, arguments.out, options, arguments.bad_records is not None)
        found = tried.spelled, tried.unprinted, tried.doubled
        value = dict(zip(("special_tokens", "unprinted", "doubled"), found, strict=True))
        lines = building.content_lines(*found, arguments.special_tokens)
        lines += tried.losses.lines(options.max_unaligned_spans)
        if tried.bad:
            lines.append(f"{counted(len(tried.bad), 'bad record')}, such as {': '.join(map(str, tried.bad[0]))}")
        count = tried.documents + len(tried.bad)
        value |= {"tried": count, "bad_records": len(tried.bad)}
        output.result({**room.to_json(), **value}, [room.line(), *(f"of {count:,} tried: {line}" for line in lines)])
        return 0 if room.enough else 1
    with building.progress(arguments.quiet) as watch, building.bad_records(arguments.bad_records) as on_bad:
        summary = build_dataset(
            sources, arguments.out, options, workers=building.workers(arguments), on_bad=on_bad, watch=watch
        )  # fmt: skip
    output.result(asdict(summary), building.summary_lines(summary, arguments))
    return 0
