"""Annotations of chunks in separate files: `chunks` of a recipe, for `build` and `annotate`."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

from conceptloader.base.strict import build as convert
from conceptloader.cli.output import Output, progress_bar
from conceptloader.errors import ConfigError
from conceptloader.format.spec.manifest import Manifest
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.build.arguments import (
    BadRecords,
    bad_records,
    ingest_options,
    progress,
    summary_lines,
    workers,
)
from conceptloader.ingest.chunks.build import Chunked, annotate_chunked, build_chunked
from conceptloader.ingest.chunks.join import Documents
from conceptloader.ingest.chunks.options import Chunks
from conceptloader.ingest.chunks.report import Joined
from conceptloader.ingest.files import input_files

CONTENT = "text", "tokens"


def parquet_files(paths: Sequence[str]) -> tuple[str, ...]:
    """The parquet files that `paths` name, in that order, see `input_files`. Raises: ConfigError, InputError."""
    found = input_files(paths)
    wrong = [file for file in found if not file.lower().endswith((".parquet", ".parq"))]
    if wrong or (paths and not found):
        raise ConfigError(
            wrong[0] if wrong else ", ".join(paths),
            "no parquet file",
            "a parquet file, or a directory of parquet files",
            "pass files that end in .parquet, or write these as parquet",
        )
    return tuple(found)


def _read_chunks(arguments: argparse.Namespace) -> Chunks:
    """Return the options. Raises: ConfigError."""
    where = "--chunks" if arguments.recipe is None else f"{arguments.recipe}: chunks"
    default = {"wrong": "error" if arguments.bad_records is None else "unannotated"}
    chunks = convert(Chunks, {**default, **(arguments.chunks or {})}, where)
    unit = arguments.span_unit or chunks.span_unit
    if chunks.span_unit not in (None, unit):
        raise ConfigError(
            where,
            f"span_unit {chunks.span_unit} and --span-unit {unit}",
            "the same unit in one place",
            "omit --span-unit",
        )
    return replace(chunks, files=parquet_files(chunks.files), span_unit=unit)


def _read_documents(arguments: argparse.Namespace) -> Documents:
    """Raises: ConfigError."""
    names = dict(arguments.column)
    for name in names:
        if name not in CONTENT or len(names) > 1:
            raise ConfigError(
                "--column",
                f"{', '.join(names)} with chunks",
                "text or tokens",
                "pass --column with text or tokens only",
            )
    tokens, content = next(((name == "tokens", column) for name, column in names.items()), (False, "text"))
    files, keep = parquet_files(arguments.inputs), getattr(arguments, "metadata_column", ())
    return Documents(files=files, content=content, tokens=tokens, keep=keep)


@contextmanager
def _chunked(arguments: argparse.Namespace) -> Iterator[Chunked]:
    """Yield the join with its progress bar, and the list of bad chunks."""
    documents, chunks = _read_documents(arguments), _read_chunks(arguments)
    with progress_bar(arguments.quiet, " files") as joining, bad_records(arguments.bad_records) as on_bad:
        yield Chunked(documents, chunks, arguments.out, workers(arguments), on_bad, joining)


def annotate(arguments: argparse.Namespace, options: AnnotateOptions) -> tuple[Manifest, Joined]:
    """What `annotate` does with `chunks`."""
    with _chunked(arguments) as given:
        return annotate_chunked(given, arguments.dataset, options, arguments.root)


def build(arguments: argparse.Namespace, output: Output) -> int:
    """What `build` does with `chunks`."""
    with _chunked(arguments) as given, progress(arguments.quiet) as watch:
        options = ingest_options(arguments, given.columns, {})
        summary, joined = build_chunked(given, options, watch=watch, overwrite=arguments.overwrite)
        if isinstance(given.on_bad, BadRecords):
            given.on_bad.check_all(joined.wrong, given.path)
    assert summary is not None
    value = {**asdict(summary), "chunks": joined.to_json(), "groups": given.library.groups()}
    output.result(value, [*summary_lines(summary, arguments), *joined.lines()])
    return 0
