"""Annotations of chunks in separate files: `chunks` of a recipe, for `build` and `annotate`."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from conceptloader.base.strict import build as convert
from conceptloader.cli.arguments import Add, json_object
from conceptloader.cli.building import BadRecords, bad_records, ingest_options, progress, summary_lines, workers
from conceptloader.cli.output import Output, progress_bar
from conceptloader.errors import ConfigError
from conceptloader.ingest.chunks.atlas import parquet_files
from conceptloader.ingest.chunks.build import Chunked, build_chunked
from conceptloader.ingest.chunks.join import Documents
from conceptloader.ingest.chunks.options import Chunks

CONTENT = "text", "tokens"


def add_chunks(add: Add) -> None:
    meaning = "annotations in separate files, a row per chunk of a document (docs/annotations.md lists the keys)"
    add("--chunks", type=json_object, metavar="MAPPING", help=f"in a recipe: {meaning}")


def read_chunks(arguments: argparse.Namespace, preset: Mapping[str, Any] | None = None) -> Chunks:
    """Return the options. preset: keys that `chunks` adds to, or replaces. Raises: ConfigError."""
    where = "--chunks" if arguments.recipe is None else f"{arguments.recipe}: chunks"
    careful = preset is None and arguments.bad_records is None
    default = {"wrong": "error" if careful else "unannotated"}
    chunks = convert(Chunks, {**default, **(preset or {}), **(arguments.chunks or {})}, where)
    return replace(chunks, files=parquet_files(chunks.files))


def read_documents(arguments: argparse.Namespace) -> Documents:
    """Raises: ConfigError."""
    names = dict(arguments.column)
    for name in names:
        if name not in CONTENT or len(names) > 1:
            raise ConfigError("--column", f"{', '.join(names)} with chunks", "text or tokens")
    tokens, content = next(((name == "tokens", column) for name, column in names.items()), (False, "text"))
    files, keep = parquet_files(arguments.inputs), getattr(arguments, "metadata_column", ())
    prefix = getattr(arguments, "prefix", None)
    return Documents(files=files, content=content, tokens=tokens, keep=keep, prefix=prefix)


@contextmanager
def chunked(documents: Documents, chunks: Chunks, arguments: argparse.Namespace) -> Iterator[Chunked]:
    """Yield the join with its progress bar, and the list of bad chunks."""
    with progress_bar(arguments.quiet, " files") as joining, bad_records(arguments.bad_records) as on_bad:
        yield Chunked(documents, chunks, arguments.out, workers(arguments), on_bad, joining)


def build(documents: Documents, chunks: Chunks, arguments: argparse.Namespace, output: Output) -> int:
    with chunked(documents, chunks, arguments) as given, progress(arguments.quiet) as watch:
        options = ingest_options(arguments, given.columns, {})
        summary, joined = build_chunked(given, options, watch=watch, overwrite=arguments.overwrite)
        if isinstance(given.on_bad, BadRecords):
            given.on_bad.check_all(joined.wrong, given.path)
    assert summary is not None
    value = {**asdict(summary), "chunks": joined.to_json(), "groups": given.library.groups()}
    output.result(value, [*summary_lines(summary, arguments.bad_records), *joined.lines()])
    return 0
