"""conceptloader build"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any

from conceptloader.cli.arguments import (
    SPAN_RULES,
    add_max_line_bytes,
    add_out,
    add_span_rules,
    chosen,
    eos_id,
    pair,
    positive,
    size,
)
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError

SUMMARY = "build a dataset from jsonl or parquet files"
DESCRIPTION = """\
Build a dataset from text with spans, or from tokens with spans.

A record is one document (a line of jsonl, a row of parquet; .jsonl.gz and .jsonl.zst too):

  {"id": "a1", "text": "A cat sat.", "spans": [{"start": 2, "end": 5, "concepts": ["animal"]}]}
  {"id": "a2", "tokens": [5, 7, 9],  "spans": [{"start": 0, "end": 2, "concepts": [17]}]}

start and end count characters (Unicode code points) of the text, or tokens. A token belongs to the span that holds its
first character that is not white space, see --align; eos belongs to none. Further columns: spans_<track> makes another
track of concepts, metadata (an object) a track of documents' metadata. Columns that are not known are refused unless
they are ignored.

  conceptloader build corpus/ --out data/corpus --tokenizer tokenizer.json --concepts-vocabulary concepts.txt
  conceptloader build chats.jsonl --out data/chats --tokenizer model/ --chat --max-tokens 8192
  conceptloader build tokens.parquet --out data/tokens --vocab-size 50257 --eos 50256 --workers 8

With --chat a record is a conversation: messages (each with role and content), tools; or prompt and completion; or
chosen and rejected, which become two documents. It is rendered by the tokenizer's chat template, and the loss is on
what the assistant says (field loss_mask). Mode document; no eos is appended.

When interrupted, run the same command again: finished shards are kept. The result does not depend on --workers.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="files, or directories of files")
    add_out(add)
    add("--workers", type=positive, metavar="N", help="worker processes (default: one per available CPU)")

    group = parser.add_argument_group("tokens").add_argument
    group("--tokenizer", metavar="bytes|PATH", help="`bytes`, a tokenizer.json, or a transformers folder")
    group("--vocab-size", type=positive, metavar="N", help="for tokens as input, instead of --tokenizer")
    group("--eos", metavar="TOKEN|ID", help="token that ends a document, or its id (default: the tokenizer's)")
    group("--no-eos", action="store_true", help="do not append an eos token to each document")
    group("--token-type", choices=["u2", "u4"], help="stored type (default: the smallest that holds the vocabulary)")

    group = parser.add_argument_group("concepts").add_argument
    group("--concepts-vocabulary", metavar="FILE", help="names of the concepts, one per line or a JSON list")
    group(
        "--vocabulary",
        action="append",
        default=[],
        type=pair("=", "TRACK=FILE"),
        metavar="TRACK=FILE",
        help="the same for another track",
    )
    add_span_rules(group)
    group(
        "--encoding",
        choices=["auto", "dense", "spans"],
        default="auto",
        help="of all tracks (default: auto, the smaller one in each shard)",
    )

    group = parser.add_argument_group("columns (by default those of the first records)").add_argument
    group("--text-column", dest="text", metavar="NAME")
    group("--tokens-column", dest="tokens", metavar="NAME")
    group("--id-column", dest="id", default="id", metavar="NAME")
    group("--track", action="append", default=[], metavar="TRACK", help="a track that the first records may not have")
    group("--metadata-column", action="append", default=[], metavar="NAME", help="goes into the document's metadata")
    group(
        "--field",
        action="append",
        default=[],
        type=pair(":", "NAME:TYPE"),
        metavar="NAME:TYPE",
        help="a column with one number per token, such as loss_mask:u1",
    )
    group("--ignore-column", dest="ignored", action="append", default=[], metavar="NAME")

    group = parser.add_argument_group("conversations").add_argument
    group("--chat", action="store_true", help="records are conversations, see above")
    group("--chat-template", metavar="FILE", help="in Jinja (default: that of the --tokenizer folder)")
    group("--max-tokens", type=positive, metavar="N", help="leave out the last turns of a longer conversation")

    group = parser.add_argument_group("the build").add_argument
    group("--mode", choices=["stream-with-metadata", "token-stream", "document"], help="default: by the columns")
    group(
        "--shard-input-bytes",
        type=size,
        metavar="SIZE",
        help="input per shard (default: about 64 shards of 64M to 16G)",
    )
    add_max_line_bytes(group)
    group("--skip-bad", metavar="FILE", help="leave out records that cannot be ingested, and list them in FILE")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from conceptloader.ingest.build.builder import IngestOptions, build_dataset
    from conceptloader.ingest.rows.chat import CHAT_COLUMNS, load_rules
    from conceptloader.ingest.rows.detect import detect_columns
    from conceptloader.ingest.rows.inputs import find_sources
    from conceptloader.ingest.rows.tokenizer import load_tokenizer
    from conceptloader.ingest.rows.vocabulary import load_vocabulary

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # parallel over documents of one shard; --workers decides
    if (arguments.tokenizer is None) == (arguments.vocab_size is None):
        raise ConfigError("build: expected either --tokenizer or, for tokens as input, --vocab-size")
    if arguments.eos is not None and arguments.no_eos:
        raise ConfigError("build: found --eos and --no-eos, expected one of them")
    sources = find_sources(arguments.inputs)
    rules = None
    if arguments.chat:
        if arguments.tokenizer is None:
            raise ConfigError("build: found --chat without --tokenizer, expected the one of the model")
        rules = load_rules(arguments.tokenizer, arguments.chat_template, arguments.max_tokens)
        columns = replace(CHAT_COLUMNS, ignored=tuple(arguments.ignored))
    elif arguments.chat_template is not None or arguments.max_tokens is not None:
        raise ConfigError("build: found --chat-template or --max-tokens without --chat; add it")
    else:
        columns = detect_columns(
            sources,
            tracks=arguments.track,
            metadata_columns=arguments.metadata_column,
            fields=dict(arguments.field),
            **chosen(arguments, "text", "tokens", "id", "ignored", "max_line_bytes"),
        )
    vocabularies = {track: load_vocabulary(file) for track, file in arguments.vocabulary}
    if arguments.concepts_vocabulary is not None:
        vocabularies["concepts"] = load_vocabulary(arguments.concepts_vocabulary)
    tokenizer = load_tokenizer(arguments.tokenizer, arguments.eos) if arguments.tokenizer is not None else None
    options = IngestOptions(
        columns=columns,
        tokenizer=tokenizer,
        eos_id=eos_id("build", arguments.eos) if tokenizer is None else None,
        append_eos=not arguments.no_eos and rules is None,
        vocabularies=vocabularies,
        chat=rules,
        mode=arguments.mode or ("document" if rules else None),
        **chosen(arguments, *SPAN_RULES, "vocab_size", "encoding", "token_type"),
        **chosen(arguments, "shard_input_bytes", "max_line_bytes"),
    )
    workers = arguments.workers or len(os.sched_getaffinity(0))
    with _progress(arguments.quiet) as watch, _bad_records(arguments.skip_bad) as on_bad:
        summary = build_dataset(sources, arguments.out, options, workers=workers, on_bad=on_bad, watch=watch)
    lines = [
        f"{summary.path}: {summary.documents:,} documents, {summary.tokens:,} tokens, {summary.shards} shards"
        f" ({summary.kept_shards} kept) in {summary.seconds:.1f} s"
    ]
    if summary.truncated:
        lines.append(f"{summary.truncated:,} conversations were longer than --max-tokens, and lost their last turns")
    lines += summary.losses.lines()
    if summary.bad_records:
        lines.append(f"{summary.bad_records:,} bad records were left out, see {arguments.skip_bad}")
    output.result(asdict(summary), lines)
    return 0


@contextmanager
def _bad_records(path: str | None) -> Iterator[Any]:
    """A function that appends a record to the list of bad ones, or None."""
    if path is None:
        yield None
        return
    try:
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - entered below, where errors are the build's
    except OSError as error:
        raise ConfigError(f"--skip-bad {path}: cannot be written: {error.strerror}") from error
    with file:

        def write(source: str, where: str, problem: str) -> None:
            file.write(json.dumps({"file": source, "where": where, "problem": problem}) + "\n")
            file.flush()

        yield write


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """What begins a bar over the stored bytes of the input, on a terminal only: rate, time left, errors."""
    from tqdm import tqdm

    with ExitStack() as stack:

        def start(total: int, done: int) -> Any:
            disable = quiet or not sys.stderr.isatty()
            bar = stack.enter_context(tqdm(total=total, initial=done, unit="B", unit_scale=True, disable=disable))
            counts: Counter[str] = Counter()
            began = time.monotonic()

            def update(progress: Any) -> None:
                counts.update(documents=progress.documents, tokens=progress.tokens, bad=len(progress.bad))
                rate = counts["tokens"] / max(1e-9, time.monotonic() - began)
                shown = f"{counts['documents']:,} documents, {rate:,.0f} tokens/s, errors {counts['bad']}"
                bar.set_postfix_str(shown, refresh=False)
                bar.update(progress.bytes)

            return update

        yield start
