"""What else `build` does: public corpora, concept names, finalizing shards of other programs, re-encoding."""

import argparse
import os
from collections import Counter
from typing import Any

from conceptloader.cli import chunks
from conceptloader.cli.arguments import SPAN_RULES, add_root, positive, refuse_all_but, refuse_without
from conceptloader.cli.building import check_tokens
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.read.files import load_manifest
from conceptloader.format.spec.vocabulary import dump_vocabulary
from conceptloader.format.tools.reencode import reencode
from conceptloader.ingest.build.lost import finalize_within
from conceptloader.ingest.chunks.atlas import atlas
from conceptloader.ingest.records.inputs import Source, find_sources, read_rows
from conceptloader.storage.durable import write_file

_OF_PRESETS = (
    "inputs", "out", "workers", "tokenizer", "vocab_size", "eos", "no_eos", "bos", "token_dtype", "encoding", "mode",
    "chunks", "shard_input_bytes", "max_line_bytes", "bad_records", "overwrite", *SPAN_RULES,
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
    meaning = "re-encode the tracks of a dataset, with another --encoding"
    group("--from-dataset", metavar="DATASET", help=meaning)
    add_root(group, " of --from-dataset")


def other_build(arguments: argparse.Namespace, output: Output) -> int | None:
    """Do what is requested instead of building records, if anything. Returns: the exit code."""
    ways = {
        "--preset": build_preset, "--vocabulary-only": collect_vocabulary, "--finalize": finalize,
        "--from-dataset": encode_again,
    }  # fmt: skip
    for option, way in ways.items():
        if getattr(arguments, option.removeprefix("--").replace("-", "_")):
            if not arguments.inputs and option in ("--preset", "--vocabulary-only"):
                raise ConfigError("build", f"{option} and no INPUT", "files, or a directory")
            return way(arguments, output)
    refuse_without("--vocabulary-only", arguments, "min_count")
    refuse_without("--from-dataset", arguments, "root")
    return None


def build_preset(arguments: argparse.Namespace, output: Output) -> int:
    """Build a public corpus; chunks that it did not annotate, or that are invalid, are counted as not annotated."""
    refuse_all_but("--preset", arguments, *_OF_PRESETS)
    check_tokens("build", arguments)
    if len(arguments.inputs) != 1:
        raise ConfigError("build --preset", f"{len(arguments.inputs)} INPUTs", "one, the directory of the corpus")
    documents, known = atlas(arguments.inputs[0])
    return chunks.build(documents, chunks.read_chunks(arguments, known), arguments, output)


def finalize(arguments: argparse.Namespace, output: Output) -> int:
    """Write the manifest. Missing, foreign and differently configured shards raise, and too many unaligned spans."""
    refuse_all_but("--finalize", arguments, "out", "max_unaligned_spans")
    output.manifest(arguments.out, finalize_within(arguments.out, arguments.max_unaligned_spans))
    return 0


def encode_again(arguments: argparse.Namespace, output: Output) -> int:
    """Re-encode tracks. The stream fingerprint stays, so a run can switch to it. An interrupted call resumes."""
    refuse_all_but("--from-dataset", arguments, "out", "encoding", "track", "root")
    source = arguments.from_dataset
    tracks = arguments.track or sorted(load_manifest(source, arguments.root)[0].tracks)
    manifest = reencode(source, arguments.out, dict.fromkeys(tracks, arguments.encoding), arguments.root)
    encodings = {name: sorted({e or "none" for e in manifest.shards.tracks[name].encoding}) for name in manifest.tracks}
    value = {"path": arguments.out, "encodings": encodings, "stream_fingerprint": manifest.stream_fingerprint()}
    lines = [f"{arguments.out}: " + ", ".join(f"{name}: {' and '.join(kinds)}" for name, kinds in encodings.items())]
    output.result(value, lines)
    return 0


def collect_vocabulary(arguments: argparse.Namespace, output: Output) -> int:
    """Write concept names, the most frequent first; they depend on the records only."""
    refuse_all_but("--vocabulary-only", arguments, "inputs", "out", "track", "min_count", "max_line_bytes")
    columns = ["spans" if track == "concepts" else f"spans_{track}" for track in arguments.track] or ["spans"]
    if len(columns) > 1:
        raise ConfigError("build --vocabulary-only", f"{len(columns)} tracks", "one", "collect them individually")
    taken = ConfigError(f"--out {arguments.out}", "a file", "none", "remove it or choose another name")
    if os.path.lexists(arguments.out):
        raise taken
    names: Counter[str] = Counter()
    for source in find_sources(arguments.inputs):
        count_names(source, columns[0], arguments.max_line_bytes, names)
        source.check_unchanged()
    if not names:
        raise InputError(
            ", ".join(arguments.inputs),
            f"no concept name in column {columns[0]!r}",
            "at least one",
            "name the track (--track topic is column spans_topic)",
        )
    kept = sorted(
        (name for name, n in names.items() if n >= arguments.min_count), key=lambda name: (-names[name], name)
    )
    unfit = next((name for name in kept if not name or "\n" in name or name != name.removesuffix("\r")), None)
    if unfit is not None or (kept and kept[0].startswith(("[", "\ufeff"))):
        data = dump_vocabulary(kept)  # names that lines cannot hold: a JSON list, which `build` reads as well
    else:
        data = "".join(f"{name}\n" for name in kept).encode("utf-8")
    if not write_file(os.path.abspath(arguments.out), data, exclusive=True):
        raise taken
    value: dict[str, Any] = {"file": arguments.out, "names": len(kept), "left_out": len(names) - len(kept)}
    output.result(value, [f"{arguments.out}: {len(kept):,} names, {value['left_out']:,} rarer ones skipped"])
    return 0


def count_names(source: Source, column: str, max_line_bytes: int, names: "Counter[str]") -> None:
    """Count the concept names in one column of one file. Raises: InputError naming file and line."""
    for number, record in read_rows(source, max_line_bytes, column):
        spans = record.get(column)
        try:
            for span in () if spans is None else spans:
                names.update(concept for concept in span["concepts"] if isinstance(concept, str))
        except (TypeError, KeyError) as error:
            raise InputError(
                f"{source.row_name(number)}: {column}", f"{spans!r:.100}", "a list of spans with concepts"
            ) from error
