"""The command `conceptloader build`."""

import argparse
from dataclasses import asdict, replace

from conceptloader.base.strict import unknown
from conceptloader.base.terminal import counted
from conceptloader.cli.arguments import (
    add_pairs,
    by_track,
    chosen,
    positive,
    refuse_beside,
    refuse_without,
    track_file,
)
from conceptloader.cli.output import Output
from conceptloader.cli.recipe import add_recipe
from conceptloader.errors import ConfigError
from conceptloader.ingest.build import arguments as building
from conceptloader.ingest.build.builder import build_dataset, estimate
from conceptloader.ingest.build.simple import with_chat
from conceptloader.ingest.hub import TOKENIZER_FILES, fetched
from conceptloader.ingest.records.chat import CHAT_NAMES, ChatRules, load_rules, read_variable
from conceptloader.ingest.records.detect import detect_columns, with_labels
from conceptloader.ingest.records.inputs import find_sources
from conceptloader.ingest.records.vocabulary import load_vocabulary

DESCRIPTION = """\
Build a dataset from text with spans, or from tokens with spans. A record is one document: a line of JSONL (.gz, .zst),
or a row of Parquet. start and end are in characters (Unicode code points) of the text, or in tokens.

  {"id": "a1", "text": "A cat sat.", "spans": [{"start": 2, "end": 5, "concepts": ["animal"]}]}
  {"id": "a2", "tokens": [5, 7, 9],  "spans": [{"start": 0, "end": 2, "concepts": [17]}]}

A column spans_<track> becomes another track of concepts; metadata (an object) becomes a track of document metadata.
With --chat, records are conversations (docs/datasets.md). --recipe reads options from a YAML file.

  conceptloader build --recipe build.yaml    # `conceptloader init corpus.parquet --out build.yaml` writes one
  conceptloader build corpus/ --out data/corpus --tokenizer tokenizer.json --vocabulary concepts.txt
  conceptloader build tokens.parquet --out data/tokens --vocab-size 50257 --eos 50256 --workers 8
  conceptloader build chats.jsonl --out data/chats --tokenizer model/ --chat --max-tokens 8192

If interrupted, run the same command again: finished shards are kept. The result does not depend on --workers.
"""

USAGE = "INPUT [INPUT ...] --out DIR [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("inputs", nargs="*", metavar="INPUT", help="files, or directories of files")
    add("--out", metavar="DIR", help="directory of the new dataset")
    building.add_workers(add)
    building.add_token_arguments(parser)

    group = parser.add_argument_group("concepts").add_argument
    names = "concept names of a track (default: concepts), one per line or a JSON list"
    group("--vocabulary", action="append", default=[], type=track_file, metavar="[TRACK=]FILE", help=names)
    meaning = "spans of this track have `scores`, one per concept; store them as f2 or f4"
    add_pairs(group, "--scores", "TRACK=TYPE", meaning, ", such as concepts=f2")
    building.add_concept_rules(group)

    group = parser.add_argument_group("columns (default: detected in the first records)").add_argument
    meaning = "name of text, tokens, id, metadata, spans[_TRACK]; in spans of start, end, concepts, scores or surface"
    add_pairs(group, "--column", "OURS=THEIRS", meaning, ", such as text=body or concepts=label")
    group("--track", action="append", default=[], metavar="TRACK", help="a track that the first records may lack")
    group("--metadata-column", action="append", default=[], metavar="NAME", help="add this column to the metadata")
    add_pairs(group, "--field", "NAME:TYPE", "a column of numbers per token: loss_mask:u1")
    add_pairs(group, "--number", "NAME:TYPE", "a track, a number per document: quality:f4")
    meaning = "do not read it; of spans COLUMN.FIELD"
    group("--ignore-column", dest="ignored", action="append", default=[], metavar="NAME", help=meaning)

    group = parser.add_argument_group("conversations").add_argument
    group("--chat", action="store_true", help="records are conversations")
    group("--chat-template", metavar="FILE", help="Jinja template (default: that of the --tokenizer directory)")
    group("--max-tokens", type=positive, metavar="N", help="drop the last turns of longer conversations")
    meaning = "pad to a multiple of N tokens, for context parallelism"
    group("--pad-to-multiple-of", type=positive, metavar="N", help=meaning)

    group("--last-answer", action="store_true", help="a loss on the last answer of a conversation only")
    meaning = "such as enable_thinking=false"
    add_pairs(group, "--template-variable", "NAME=VALUE", meaning)

    building.add_build_arguments(parser)
    meaning = "say what there will be, by some of the rows"
    add("--dry-run", action="store_true", help=meaning)
    add_recipe(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    tokens = arguments.tokenizer or arguments.vocab_size
    wanted = {"INPUT": arguments.inputs, "--out": arguments.out, "--tokenizer (or --vocab-size)": tokens}
    if missing := [name for name, value in wanted.items() if not value]:
        raise ConfigError(
            "build",
            f"no {', no '.join(missing)}",
            "each, on the command line or in a --recipe",
            "type as in conceptloader build corpus.jsonl --out data/corpus --tokenizer bytes",
        )
    building.check_tokens("build", arguments)
    if arguments.tokenizer is not None:  # once for all who read it
        arguments.tokenizer = fetched(arguments.tokenizer, "model", TOKENIZER_FILES)
    rules = _chat_rules(arguments)
    sources = find_sources(arguments.inputs)
    columns = detect_columns(
        sources,
        {ours: name for ours, name in arguments.column if rules is None or ours not in CHAT_NAMES},
        tracks=arguments.track,
        metadata_columns=arguments.metadata_column,
        fields=dict(arguments.field),
        numbers=dict(arguments.number),
        strict=arguments.bad_records is None and rules is None,
        **chosen(arguments, "ignored", "max_line_bytes"),
    )
    vocabularies = {track: load_vocabulary(file) for track, file in by_track(arguments.vocabulary).items()}
    options = with_chat(building.ingest_options(arguments, columns, vocabularies), rules)
    named = with_labels(vocabularies, sources, options.columns)
    options = replace(options, vocabularies=named, scores=dict(arguments.scores))
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
            sources, arguments.out, options, overwrite=arguments.overwrite, workers=building.workers(arguments),
            on_bad=on_bad, watch=watch,
        )  # fmt: skip
    output.result(asdict(summary), building.summary_lines(summary, arguments))
    return 0


def _chat_rules(arguments: argparse.Namespace) -> ChatRules | None:
    """Return how conversations are rendered, None for documents. Raises: ConfigError, InputError."""
    if not arguments.chat:
        names = "chat_template", "max_tokens", "pad_to_multiple_of", "template_variable", "last_answer"
        refuse_without("--chat", arguments, *names)
        return None
    if arguments.tokenizer is None:
        raise ConfigError("build", "--chat without --tokenizer", "the tokenizer of the model", "add --tokenizer")
    refuse_beside("--chat", arguments, "track", "field")
    for ours, _ in arguments.column:
        if ours not in (known := (*CHAT_NAMES, "id", "metadata")):
            raise unknown(f"--column {ours}", ours, known, "column of a conversation")
    return load_rules(
        arguments.tokenizer,
        arguments.chat_template,
        variables={name: read_variable(text) for name, text in arguments.template_variable},
        max_tokens=arguments.max_tokens,
        multiple=arguments.pad_to_multiple_of or 1,
        last_answer=arguments.last_answer,
        names={ours: theirs for ours, theirs in arguments.column if ours in CHAT_NAMES},
    )
