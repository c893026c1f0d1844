"""What else `build` does: public corpora, concept names, finalizing shards of other programs."""

import argparse
from typing import Any

from conceptloader.cli.arguments import SPAN_RULES, positive, refuse_all_but, refuse_without
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError
from conceptloader.ingest.build.arguments import check_tokens, with_chunks
from conceptloader.ingest.build.unaligned import finalize_within
from conceptloader.ingest.records.columns import MAIN_TRACK
from conceptloader.ingest.records.inputs import find_sources
from conceptloader.ingest.records.names import count_names, require_new, write_names

_OF_PRESETS = (
    "inputs", "out", "workers", "tokenizer", "vocab_size", "eos", "no_eos", "bos", "special_tokens", "token_dtype",
    "encoding", "mode", "chunks", "shard_input_bytes", "max_line_bytes", "bad_records", "unique_ids", "overwrite",
    *SPAN_RULES,
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("instead of building records").add_argument
    meaning = "INPUT is the directory of this public corpus"
    group("--preset", choices=["fineweb-atlas"], help=meaning)
    group("--vocabulary-only", action="store_true", help="write the concept names in INPUT to the file --out")
    group(
        "--min-count",
        type=positive,
        default=1,
        metavar="N",
        help="skip rarer names (default: 1)",
    )
    group("--finalize", action="store_true", help="write the manifest of --out, whose shards other programs wrote")


def other_build(arguments: argparse.Namespace, output: Output) -> int | None:
    """Do what is requested instead of building records, if anything. Returns: the exit code."""
    ways = {
        "--preset": build_preset, "--vocabulary-only": collect_vocabulary, "--finalize": finalize,
    }  # fmt: skip
    for option, way in ways.items():
        if getattr(arguments, option.removeprefix("--").replace("-", "_")):
            if not arguments.inputs and option in ("--preset", "--vocabulary-only"):
                raise ConfigError(
                    "build", f"{option} and no INPUT", "files, or a directory", f"pass the files after {option}"
                )
            return way(arguments, output)
    refuse_without("--vocabulary-only", arguments, "min_count")
    return None


def build_preset(arguments: argparse.Namespace, output: Output) -> int:
    refuse_all_but("--preset", arguments, *_OF_PRESETS)
    check_tokens("build", arguments)
    code: int = with_chunks().build_preset(arguments, output)
    return code


def finalize(arguments: argparse.Namespace, output: Output) -> int:
    """Write the manifest. Missing, foreign and differently configured shards raise, and too many unaligned spans."""
    refuse_all_but("--finalize", arguments, "out", "max_unaligned_spans")
    output.manifest(arguments.out, finalize_within(arguments.out, arguments.max_unaligned_spans))
    return 0


def collect_vocabulary(arguments: argparse.Namespace, output: Output) -> int:
    """Write concept names, the most frequent first; they depend on the records only."""
    refuse_all_but(
        "--vocabulary-only", arguments, "inputs", "out", "split", "track", "column", "min_count",
        "max_line_bytes",
    )  # fmt: skip
    if len(arguments.track) > 1:
        raise ConfigError(
            "build --vocabulary-only", f"{len(arguments.track)} tracks", "one track", "collect them one by one"
        )
    require_new(arguments.out)
    track, limit = (arguments.track or [MAIN_TRACK])[0], arguments.max_line_bytes
    names = count_names(find_sources(arguments.inputs, arguments.split), track, dict(arguments.column), limit)
    kept, rarer = write_names(arguments.out, names, arguments.min_count)
    value: dict[str, Any] = {"file": arguments.out, "names": kept, "left_out": rarer}
    output.result(value, [f"{arguments.out}: {kept:,} names, {rarer:,} rarer ones skipped"])
    return 0
