"""What builds share: arguments, options, progress, the summary."""

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

from conceptloader.base.arguments import (
    Add,
    positive,
)
from conceptloader.base.terminal import counted
from conceptloader.errors import ConfigError
from conceptloader.ingest.build.complete import Summary
from conceptloader.ingest.records.special_tokens import CONTROL

_FATES = {False: "kept as text", True: "which became these tokens"}


def add_workers(add: Add) -> None:
    add("--workers", type=positive, metavar="N", help="processes (default: one per available CPU)")


def add_bad_records(add: Add, what: str = "skip bad records, and list") -> None:
    add("--bad-records", metavar="FILE", help=f"{what} them in FILE")


def workers(arguments: argparse.Namespace) -> int:
    return arguments.workers or len(os.sched_getaffinity(0))


def summary_lines(summary: Summary, arguments: argparse.Namespace) -> list[str]:
    """Return the summary of a build with these arguments as text."""
    lines = [
        f"{summary.path}: {counted(summary.documents, 'document')}, {counted(summary.tokens, 'token')}, "
        f"{counted(summary.shards, 'shard')}"
        f" ({summary.kept_shards} kept) in {summary.seconds:.1f} s"
    ]
    if summary.truncated:
        lines.append(f"{counted(summary.truncated, 'conversation')} above --max-tokens; their last turns were dropped")
    lines += content_lines(summary.special_tokens, summary.unprinted, summary.doubled, arguments.special_tokens)
    if summary.guessed_eos:
        lines.append(f"the tokenizer names no eos: {summary.guessed_eos} is taken for it, by its name (--eos)")
    if summary.compared or summary.slowed:
        unproven = "with characters or added tokens that are not proven for gigatoken, by tokenizers"
        lines.append(
            f"tokenized by gigatoken, {counted(summary.slowed, 'document')} {unproven}; "
            f"{summary.compared:,} were compared with tokenizers"
        )
    elif summary.slow:
        lines.append(f"tokenized by tokenizers, the slower way: {summary.slow}")
    lines += summary.losses.lines()
    if summary.bad_records:
        lines.append(f"{summary.bad_records:,} bad records were skipped, see {arguments.bad_records}")
    return lines


def content_lines(
    spelled: Mapping[str, int], unprinted: Mapping[str, int], doubled: int, rule: str | None = None
) -> list[str]:
    """What documents hold that a build has to decide on, see `Progress`. rule: of special tokens."""
    lines = {
        f"special tokens that text spells, {_FATES[rule == CONTROL]} (--special-tokens)": spelled,
        "the chat template does not print what these fields of messages say, so it is lost": unprinted,
    }
    found = [
        f"{line}: {', '.join(f'{name} ({count:,})' for name, count in sorted(names.items()))}"
        for line, names in lines.items()
        if names
    ]
    said = f"{counted(doubled, 'document')} had the eos or bos that is added: it is there twice"
    return [*found, said] if doubled else found


class BadRecords:
    """Lists bad records in a file. Records that an interrupted build listed are not listed again."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by `bad_records`
            self._file.seek(0)
            lines = self._file.read().splitlines(keepends=True)
            if not all(line.startswith(b'{"file": ') for line in lines):
                raise ConfigError(
                    f"--bad-records {path}",
                    "a file of another kind",
                    "a list of bad records, or no file",
                    "pass another FILE to --bad-records, or remove this one",
                )
            if lines and not lines[-1].endswith(b"\n"):  # the power went
                self._file.truncate(self._file.tell() - len(lines.pop()))
        except OSError as error:
            raise ConfigError(
                f"--bad-records {path}",
                f"cannot be written: {error.strerror}",
                fix="pass another FILE, or run `chmod u+w` on its folder",
            ) from error
        self._there = Counter(lines)

    def __call__(self, source: str, where: str, problem: str) -> None:
        line = json.dumps({"file": source, "where": where, "problem": problem}).encode() + b"\n"
        if self._there[line]:
            self._there[line] -= 1
        else:
            self._file.write(line)

    def close(self) -> None:
        self._file.close()


def bad_records(path: str | None) -> AbstractContextManager[Any]:
    """Return a `BadRecords` for that file, or None."""
    return nullcontext() if path is None else closing(BadRecords(path))


@contextmanager
def progress(quiet: bool) -> Iterator[Any]:
    """Yield a function that starts a progress bar over input bytes, on terminals: rate, time left, errors."""
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
