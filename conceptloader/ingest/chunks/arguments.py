"""Annotations of chunks in separate files: `chunks` of a recipe, for `build` and `annotate`."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

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
from conceptloader.ingest.chunks.atlas import atlas, parquet_files
from conceptloader.ingest.chunks.build import Chunked, annotate_chunked, build_chunked
from conceptloader.ingest.chunks.join import Documents
from conceptloader.ingest.chunks.options import Chunks
from conceptloader.ingest.chunks.report import Joined

CONTENT = "text", "tokens"


def _read_chunks(arguments: argparse.Namespace, preset: Mapping[str, Any] | None = None) -> Chunks:
    """Return the options. preset: keys that `chunks` adds to, or replaces. Raises: ConfigError."""
    where = "--chunks" if arguments.recipe is None else f"{arguments.recipe}: chunks"
    careful = preset is None and arguments.bad_records is None
    default = {"wrong": "error" if careful else "unannotated"}
    chunks = convert(Chunks, {**default, **(preset or {}), **(arguments.chunks or {})}, where)
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
    files, keep = parquet_files(arguments.inputs, arguments.split), getattr(arguments, "metadata_column", ())
    prefix = getattr(arguments, "prefix", None)
    return Documents(files=files, content=content, tokens=tokens, keep=keep, prefix=prefix)


@contextmanager
def _chunked(documents: Documents, chunks: Chunks, arguments: argparse.Namespace) -> Iterator[Chunked]:
    """Yield the join with its progress bar, and the list of bad chunks."""
    with progress_bar(arguments.quiet, " files") as joining, bad_records(arguments.bad_records) as on_bad:
        yield Chunked(documents, chunks, arguments.out, workers(arguments), on_bad, joining)


def annotate(arguments: argparse.Namespace, options: AnnotateOptions) -> tuple[Manifest, Joined]:
    """What `annotate` does with `chunks`."""
    with _chunked(_read_documents(arguments), _read_chunks(arguments), arguments) as given:
        return annotate_chunked(given, arguments.dataset, options, arguments.root)


def build_preset(arguments: argparse.Namespace, output: Output) -> int:
    """Build a public corpus; chunks that it did not annotate, or that are invalid, are counted as not annotated."""
    if len(arguments.inputs) != 1:
        raise ConfigError(
            "build --preset",
            f"{len(arguments.inputs)} INPUTs",
            "one INPUT, the directory of the corpus",
            "name that directory alone",
        )
    documents, known = atlas(arguments.inputs[0])
    return _build(documents, _read_chunks(arguments, known), arguments, output)


def build(arguments: argparse.Namespace, output: Output) -> int:
    """What `build` does with `chunks`."""
    return _build(_read_documents(arguments), _read_chunks(arguments), arguments, output)


def _build(documents: Documents, chunks: Chunks, arguments: argparse.Namespace, output: Output) -> int:
    with _chunked(documents, chunks, arguments) as given, progress(arguments.quiet) as watch:
        options = ingest_options(arguments, given.columns, {})
        summary, joined = build_chunked(given, options, watch=watch, overwrite=arguments.overwrite)
        if isinstance(given.on_bad, BadRecords):
            given.on_bad.check_all(joined.wrong, given.path)
    assert summary is not None
    value = {**asdict(summary), "chunks": joined.to_json(), "groups": given.library.groups()}
    output.result(value, [*summary_lines(summary, arguments), *joined.lines()])
    return 0
