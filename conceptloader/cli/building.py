"""What builds share: arguments, options, progress, what is said at the end."""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from typing import Any

from tqdm import tqdm

from conceptloader.cli.arguments import (
    SPAN_RULES,
    Add,
    add_choice,
    add_max_line_bytes,
    add_span_rules,
    chosen,
    eos_id,
    positive,
    size,
)
from conceptloader.errors import ConfigError
from conceptloader.ingest.build.builder import TOKEN_DTYPES, IngestOptions
from conceptloader.ingest.build.complete import Summary
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.tokenizer import find_token, load_tokenizer


def add_workers(add: Add) -> None:
    add("--workers", type=positive, metavar="N", help="processes (default: one per available CPU)")


def add_token_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("tokens").add_argument
    add("--tokenizer", metavar="bytes|PATH", help="`bytes`, a tokenizer.json, a transformers folder, or hub:OWNER/NAME")
    add("--vocab-size", type=positive, metavar="N", help="for tokens as input, instead of --tokenizer")
    add("--eos", metavar="TOKEN|ID", help="that ends a document (default: the tokenizer's)")
    add("--no-eos", action="store_true", help="do not append an eos token to each document")
    add("--bos", metavar="TOKEN|ID", help="token to put in front of each document, or its id (default: none)")
    add(
        "--token-dtype",
        choices=list(TOKEN_DTYPES),
        help="stored type (default: the smallest that holds the vocabulary)",
    )


def add_concept_rules(add: Add) -> None:
    add_span_rules(add)
    add_choice(add, "--encoding", "auto dense spans", "of all tracks (default: auto, the smaller one in each shard)")


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the build").add_argument
    add("--mode", choices=["stream-with-metadata", "token-stream", "document"], help="default: by the columns")
    meaning = "input per shard (default: about 64 shards of 64M to 16G)"
    add("--shard-input-bytes", type=size, metavar="SIZE", help=meaning)
    add_max_line_bytes(add)
    add_skip_bad(add)
    add("--overwrite", action="store_true", help="remove the dataset that is in --out, if any")


def add_skip_bad(add: Add, what: str = "leave out bad records, and list") -> None:
    add("--bad-records", metavar="FILE", help=f"{what} them in FILE")


def workers(arguments: argparse.Namespace) -> int:
    return arguments.workers or len(os.sched_getaffinity(0))


def check_tokens(command: str, arguments: argparse.Namespace) -> None:
    """Raises: ConfigError for options that contradict each other."""
    if (arguments.tokenizer is None) == (arguments.vocab_size is None):
        raise ConfigError(command, "expected either --tokenizer or, for tokens as input, --vocab-size")
    if arguments.eos is not None and arguments.no_eos:
        raise ConfigError(command, "--eos and --no-eos", "one of them")


def ingest_options(arguments: argparse.Namespace, columns: Columns, vocabularies: dict[str, Any]) -> IngestOptions:
    """Raises: ConfigError."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # parallel over documents of one shard; --workers decides
    tokenizer = load_tokenizer(arguments.tokenizer, arguments.eos) if arguments.tokenizer is not None else None
    return IngestOptions(
        columns=columns,
        tokenizer=tokenizer,
        eos_id=eos_id("build", arguments.eos) if tokenizer is None else None,
        append_eos=not arguments.no_eos,
        bos=find_token(tokenizer, arguments.bos, "--bos"),
        vocabularies=vocabularies,
        **chosen(arguments, *SPAN_RULES, "vocab_size", "encoding", "mode"),
        token_type=TOKEN_DTYPES.get(arguments.token_dtype),
        **chosen(arguments, "shard_input_bytes", "max_line_bytes"),
    )


def summary_lines(summary: Summary, skipped: str | None) -> list[str]:
    """For people. skipped: the file with the bad records."""
    lines = [
        f"{summary.path}: {summary.documents:,} documents, {summary.tokens:,} tokens, {summary.shards} shards"
        f" ({summary.kept_shards} kept) in {summary.seconds:.1f} s"
    ]
    if summary.truncated:
        lines.append(f"{summary.truncated:,} conversations were longer than --max-tokens, and lost their last turns")
    if summary.prefix_tokens is not None:
        lines.append(f"{summary.prefix_tokens:,} of the tokens written now are of prefixes, without a loss")
    lines += summary.losses.lines()
    if summary.bad_records:
        lines.append(f"{summary.bad_records:,} bad records were left out, see {skipped}")
    return lines


class BadRecords:
    """Lists bad records in a file. What it lists already, of a start that was interrupted, is not listed once more."""

    def __init__(self, path: str) -> None:
        self._path, self._listed = path, Counter[str]()
        try:
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by `bad_records`
            self._file.seek(0)
            lines = self._file.read().splitlines(keepends=True)
            if not all(line.startswith(b'{"file": ') for line in lines):
                raise ConfigError(
                    f"--bad-records {path}",
                    "a file that is no list of bad records",
                    "such a one, or none",
                    "name another",
                )
            if lines and not lines[-1].endswith(b"\n"):  # the power went
                self._file.truncate(self._file.tell() - len(lines.pop()))
        except OSError as error:
            raise ConfigError(f"--bad-records {path}", f"cannot be written: {error.strerror}") from error
        self._there = Counter(lines)
        self._listed.update(json.loads(line)["problem"] for line in lines)

    def __call__(self, source: str, where: str, problem: str) -> None:
        line = json.dumps({"file": source, "where": where, "problem": problem}).encode() + b"\n"
        if self._there[line]:
            self._there[line] -= 1
        else:
            self._file.write(line)
            self._listed[problem] += 1

    def check_all(self, wrong: Mapping[str, int], dataset: str) -> None:
        """wrong: how many there are, by problem. Raises: ConfigError if some are not in the list."""
        total, missing = sum(wrong.values()), sum((Counter(wrong) - self._listed).values())
        if missing:
            raise ConfigError(
                f"--bad-records {self._path}",
                f"{total - missing:,} of the {total:,} chunks that were left without annotation",
                f"all: {dataset} was complete before, and its join is removed",
                "build it once more (--overwrite) to list them, or leave this option out",
            )

    def close(self) -> None:
        self._file.close()


def bad_records(path: str | None) -> AbstractContextManager[Any]:
    """A `BadRecords` for that file, or None."""
    return nullcontext() if path is None else closing(BadRecords(path))


@contextmanager
def progress(quiet: bool) -> Iterator[Any]:
    """What begins a bar over the stored bytes of the input, on a terminal only: rate, time left, errors."""
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
