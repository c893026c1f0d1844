"""Annotations of chunks in files of their own: the options for them of `build` and `annotate`."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from conceptloader.cli.arguments import add_choice, add_pairs, chosen
from conceptloader.cli.building import BadRecords, bad_records, ingest_options, progress, summary_lines, workers
from conceptloader.cli.output import Output, progress_bar
from conceptloader.errors import ConfigError
from conceptloader.ingest.chunks.atlas import parquet_files
from conceptloader.ingest.chunks.build import Chunked, build_chunked
from conceptloader.ingest.chunks.join import Documents
from conceptloader.ingest.chunks.options import Chunks, ConceptTable

OPTIONS = (
    "chunks_from", "join", "labels", "chunk_starts", "chunk_number", "chunk_start", "chunk_end", "chunk_status",
    "annotated", "chunk_text", "chunk_damaged", "concept_table", "concept_key", "concept_kind", "concept_name",
    "wrong_chunks", "damaged_documents", "label_scores", "score_type",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("chunks, annotated in files of their own (parquet)").add_argument
    group("--chunks-from", action="append", metavar="PATH", help="file or directory with a row for each chunk")
    group("--join", metavar="COLUMN", help="column with the document's id, in both")
    add_pairs(group, "--labels", "KIND=COLUMN", "column with the list of a chunk's concepts of one kind")
    group("--chunk-starts", metavar="COLUMN", help="of documents: a list of where their chunks begin")
    group("--chunk-number", metavar="COLUMN", help="of chunks: which one of its document it is, from 0")
    group("--chunk-start", metavar="COLUMN", help="of chunks, instead of these two: where it begins ...")
    group("--chunk-end", metavar="COLUMN", help="... and where it ends")
    group("--chunk-status", metavar="COLUMN", help="of chunks: what became of it")
    group("--annotated", action="append", metavar="VALUE", help="status of those that are annotated (default: ok)")
    group("--chunk-text", metavar="COLUMN", help="of chunks: their text, compared with the document's")
    group("--chunk-damaged", metavar="COLUMN", help="of documents: whether their chunks have errors (true or false)")
    group("--concept-table", metavar="FILE", help="parquet with a row for each concept")
    group("--concept-key", default="concept_id", metavar="COLUMN", help="what labels hold (default: concept_id)")
    group("--concept-kind", metavar="COLUMN", help="its kind; leave it out if there is only one")
    group("--concept-name", default="name", metavar="COLUMN", help="its name (default: name)")
    add_rules(group, "refuse")


def add_rules(add: Any, wrong: str) -> None:
    default = f"{wrong}{', with --skip-bad unannotated' if wrong == 'refuse' else ''}"
    meaning = f"chunks that cannot be so: an error, or left without annotation and counted (default: {default})"
    add("--wrong-chunks", choices=["refuse", "unannotated"], help=meaning)
    meaning = "documents that say that their chunks have errors: kept as far as they are right (default), or left "
    add_choice(add, "--damaged-documents", "keep unannotated", f"{meaning}without annotation; counted in any case")
    meaning = "column with a list of one score for each label of this kind; for all kinds or none"
    add_pairs(add, "--label-scores", "KIND=COLUMN", meaning)
    add("--score-type", choices=["f2", "f4"], default="f4", help="of such scores as they are stored (default: f4)")


def rules(arguments: argparse.Namespace, wrong: str) -> dict[str, Any]:
    """wrong: the default of --wrong-chunks."""
    given = {"scores": dict(arguments.label_scores), **chosen(arguments, "damaged_documents", "score_type")}
    if arguments.skip_bad is not None:
        wrong = "unannotated"
    return {**given, "wrong": arguments.wrong_chunks or wrong}


def asked(command: str, arguments: argparse.Namespace) -> bool:
    """Whether there are annotations of chunks. Raises: ConfigError for options for them of which some are missing."""
    for option in ("join", "concept_table"):
        given = {"--chunks-from": arguments.chunks_from, f"--{option.replace('_', '-')}": getattr(arguments, option)}
        missing = [flag for flag, value in given.items() if value is None]
        if len(missing) == 1:
            (found,) = given.keys() - missing
            raise ConfigError(command, f"{found} without {missing[0]}", "both")
    return arguments.chunks_from is not None


def read_arguments(arguments: argparse.Namespace) -> tuple[Documents, Chunks]:
    """Raises: ConfigError."""
    table = ConceptTable(path=arguments.concept_table, **chosen(arguments, "key", "kind", "name", prefix="concept_"))
    columns = "starts", "number", "start", "end", "status", "text", "damaged"
    chunks = Chunks(
        files=parquet_files(arguments.chunks_from),
        join=arguments.join,
        labels=dict(arguments.labels),
        concepts=table,
        annotated=tuple(arguments.annotated or ["ok"]),
        **chosen(arguments, *columns, prefix="chunk_"),
        **rules(arguments, "refuse"),
    )
    content, tokens = arguments.tokens or arguments.text or "text", arguments.tokens is not None
    files, keep = parquet_files(arguments.inputs), getattr(arguments, "metadata_column", ())
    prefix = getattr(arguments, "prefix", None)
    return Documents(files=files, content=content, tokens=tokens, keep=keep, prefix=prefix), chunks


@contextmanager
def chunked(documents: Documents, chunks: Chunks, arguments: argparse.Namespace) -> Iterator[Chunked]:
    """With a progress bar of the join, and the list of what is bad."""
    with progress_bar(arguments.quiet, " files") as joining, bad_records(arguments.skip_bad) as on_bad:
        yield Chunked(documents, chunks, arguments.out, workers(arguments), on_bad, joining)


def build(documents: Documents, chunks: Chunks, arguments: argparse.Namespace, output: Output) -> int:
    with chunked(documents, chunks, arguments) as given, progress(arguments.quiet) as watch:
        options = ingest_options(arguments, given.columns, {})
        summary, joined = build_chunked(given, options, watch=watch, overwrite=arguments.overwrite)
        if isinstance(given.on_bad, BadRecords):
            given.on_bad.check_all(joined.wrong, given.path)
    assert summary is not None
    value = {**asdict(summary), "chunks": joined.to_json(), "groups": given.library.groups()}
    output.result(value, [*summary_lines(summary, arguments.skip_bad), *joined.lines()])
    return 0
