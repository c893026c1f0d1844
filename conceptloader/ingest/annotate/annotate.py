"""New tracks over an existing dataset, foreign token files included: a new dataset that refers to the old files."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from conceptloader.base.terminal import counted
from conceptloader.errors import ConfigError, InputError, ReadError
from conceptloader.format.read.files import Files, load_manifest
from conceptloader.format.read.kept import copy_tokenizer
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.codecs import get_codec
from conceptloader.format.spec.manifest import CREATED_BY, Manifest, Track
from conceptloader.format.spec.options import TrackOptions
from conceptloader.format.spec.paths import Roots
from conceptloader.format.spec.vocabulary import Vocabulary, describe_vocabulary
from conceptloader.format.tools.columns import join_columns, write_columns
from conceptloader.format.tools.derived import moved, new_directory, warn_of_roots
from conceptloader.format.write.finalize import write_manifest
from conceptloader.format.write.ladder import with_border_windows
from conceptloader.format.write.track import BulkSpans
from conceptloader.ingest.align.rules import SpanAlignment
from conceptloader.ingest.align.spans import level_names
from conceptloader.ingest.align.units import UNITS
from conceptloader.ingest.annotate.columns import BatchParser
from conceptloader.ingest.annotate.join import Annotations, as_batch, found_batch
from conceptloader.ingest.annotate.place import Placer
from conceptloader.ingest.annotate.rows import WHOLE
from conceptloader.ingest.annotate.text import known_text
from conceptloader.ingest.annotate.write import KINDS, ShardTracks
from conceptloader.ingest.build.unaligned import Losses
from conceptloader.ingest.database import database
from conceptloader.ingest.records.detect import labels_of
from conceptloader.ingest.records.inputs import Source, find_sources, read_rows
from conceptloader.ingest.records.lines import MAX_LINE_BYTES, is_csv
from conceptloader.ingest.records.table import read_row_groups, rows_of
from conceptloader.ingest.records.tokenizer import TextTokenizer
from conceptloader.ingest.records.vocabulary import Concepts
from conceptloader.storage.durable import write_file

OnBad = Callable[[str, str, str], None]
_BATCH_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class AnnotateOptions(SpanAlignment):
    """How annotations become a track; what SpanAlignment has, decides which tokens a span gets.

    Attributes:
        track: Name of the new track.
        codec: What its records are, see docs/format.md.
        parameters: Of the codec.
        vocabulary: Names of the concepts, index = concept id (codec concepts only).
        groups: (name, number of concepts) of parts of the vocabulary, in the order of their ids.
        details: What else is known of each concept, objects of JSON.
        span_unit: By default offsets count what those of the build did where the text of the documents is known (see
            `known_text`), else tokens.
        tokenizer: For characters, if the one that was kept next to the dataset is not meant.
        ignored: Columns that may be there.
        columns: What the columns in docs/annotations.md are called in the inputs, where that differs.
        joined: What these were joined of, for the dataset to keep.
        sort_bytes: Memory for sorting, in addition to some 100 MB of rows that are read; the rest goes to temporary
            files in `out`.
        max_line_bytes: Longest line of a text file, in bytes.
        split: Of directories with several ones, that to read.
    """

    track: str
    codec: str = "concepts"
    parameters: Mapping[str, Any] | None = None
    vocabulary: Sequence[str] | None = None
    groups: Sequence[tuple[str, int]] = ()
    details: Sequence[Mapping[str, Any]] | None = None
    tokenizer: TextTokenizer | None = None
    ignored: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    joined: Mapping[str, Any] | None = None
    sort_bytes: int = 96 << 20
    max_line_bytes: int = MAX_LINE_BYTES
    split: str | None = None

    def check(self) -> TrackOptions:
        options = TrackOptions(
            codec=self.codec, parameters=self.parameters or {}, encoding=fmt.SPANS, vocabulary=self.vocabulary,
            groups=self.groups, details=self.details,
        )  # fmt: skip
        options.check(self.track)
        get_codec(options.codec, options.parameters, f"track {self.track!r}")
        if self.span_unit == "token" and self.tokenizer is not None:
            raise ConfigError(
                "span_unit", "tokens with a tokenizer", "a tokenizer only for offsets in characters", "omit --tokenizer"
            )
        self.check_rules()
        if self.overlap == "union" and self.codec != "concepts":
            raise ConfigError("overlap", f"union with codec {self.codec}", "codec concepts", "pass --overlap levels")
        return options


def annotate(
    dataset: str | os.PathLike[str],
    inputs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    options: AnnotateOptions,
    roots: Sequence[str | os.PathLike[str]] | None = None,
    on_bad: OnBad | None = None,
) -> Manifest:
    """Make the dataset `out`: the tokens and tracks of `dataset` where they are, and a new track from `inputs`.

    Args:
        dataset: Directory of a dataset.
        inputs: Jsonl (also .gz, .zst), CSV or parquet files of annotations in any order, see docs/annotations.md;
            documents without one are gaps. An annotation of a whole document holds its eos, too. Memory is bounded for
            any size.
        out: Directory of the new one, or of the same build that was interrupted.
        options: The track and how spans are aligned.
        roots: See `open_dataset`.
        on_bad: Called with (file, place, problem) for rows that cannot be read, which are then skipped. A failure
            leaves no files. What was done is in the manifest: `extra["annotated"][track]`.

    Returns:
        The manifest of the new dataset.

    Raises:
        ConfigError: For arguments, and for offsets without a unit that could be either.
        InputError: For annotations of unknown documents, outside of their document or corrupt, naming file and line,
            and if more than `max_unaligned_spans` of them got no token.
        FormatError: A file is corrupt or not as its manifest says.
        ReadError: A file cannot be read.
    """
    sources = find_sources(inputs, options.split)
    options = _with_labels(options, sources)
    track = options.check()
    manifest, allowed = load_manifest(dataset, roots)
    with (
        closing(Files(manifest, allowed)) as files,
        new_directory(out) as working,
        database(working, f"{options.sort_bytes}B", partial(_unsorted, os.fspath(out))) as opened,
    ):
        ds = Ranges(files)
        for name in files.columns:  # which the new dataset gets in the end
            files.columns.get(name)
        names = level_names(options.track, options.overlap, options.levels)
        taken = sorted(set(names) & {*manifest.tracks, *ds.field_names, *files.columns})
        if taken:
            raise ConfigError(
                ds.path,
                f"a track, field or column {taken[0]!r}",
                "a new name",
                "pass another --track NAME, or another --out",
            )
        if not manifest.num_documents:
            raise ConfigError(
                ds.path,
                "no document table",
                "a document table",
                "annotations belong to documents: run `conceptloader build` or `adopt` with documents",
            )
        written = {name: ShardTracks(working, name, track, ds.manifest) for name in names}
        placed = _Placed(ds, opened, working, sources, options, on_bad)
        for shard, found in placed:
            for name, spans in found.items():
                written[name].add(shard, spans)
        placed.losses.check(options.max_unaligned_spans, str(sources[0].path), "nothing was written")
        vocabulary = None
        if options.vocabulary is not None:
            vocabulary, described = describe_vocabulary(
                options.track, options.vocabulary, options.groups, options.details
            )
            for name, data in described.items():
                write_file(os.path.join(working, name), data)
        copy_tokenizer(ds.files, working)
        manifest = _assemble(ds, os.path.abspath(out), written, options, vocabulary)
        done = {
            **options.to_json(),
            "unit": placed.unit,
            "loss": placed.losses.to_json().get(options.track),
            **({"joined": options.joined} if options.joined else {}),
            **({"bad_rows": placed.rows.bad} if placed.rows.bad else {}),
        }
        annotated = {**manifest.extra.get("annotated", {}), options.track: done}
        manifest = replace(manifest, extra={**manifest.extra, "annotated": annotated})
        new = replace(manifest, tracks={name: manifest.tracks[name] for name in names})
        counted = with_border_windows(new, Roots(working, ds.files.roots.given))
        manifest = replace(manifest, tracks={**manifest.tracks, **counted.tracks})
        write_columns(join_columns("annotate", [files], manifest, os.path.abspath(out)), working)
        write_manifest(manifest, working)
    warn_of_roots(manifest, os.path.abspath(out))
    return manifest


def try_annotations(
    ds: Ranges, sources: Sequence[Source], options: AnnotateOptions, rows: float, on_bad: OnBad
) -> Losses:
    """Place the first `rows` of `sources` as `annotate` would, and write nothing. Returns: what got no token."""
    with (
        TemporaryDirectory() as working,
        database(working, f"{options.sort_bytes}B", partial(_unsorted, working)) as opened,
    ):
        placed = _Placed(ds, opened, working, sources, _with_labels(options, sources), on_bad, rows)
        for _ in placed:
            pass
    return placed.losses


def _with_labels(options: AnnotateOptions, sources: Sequence[Source]) -> AnnotateOptions:
    """The same with the names that `datasets` keeps of the labels, if there is no vocabulary."""
    if options.codec != "concepts" or options.vocabulary is not None:
        return options
    spans, field = (options.columns.get(name, name) for name in ("spans", "concepts"))
    return replace(options, vocabulary=labels_of(sources, spans, field) or labels_of(sources, None, field))


class _Placed:
    """(shard, spans by track) of what inputs annotate. unit: of offsets; losses: of what was placed so far.

    first: only so many rows.
    """

    def __init__(
        self, ds: Ranges, database: Any, working: str, sources: Sequence[Source], options: AnnotateOptions,
        on_bad: OnBad | None, first: float | None = None,
    ) -> None:  # fmt: skip
        track = options.check()
        concepts = Concepts(track) if track.codec == "concepts" else None
        codec = get_codec(options.codec, options.parameters or {}, f"track {options.track!r}")
        parser = BatchParser(codec, concepts, options.ignored, options.columns)
        self.rows = _Rows(sources, parser, options.max_line_bytes, on_bad, first)
        annotations = Annotations(database, working, self.rows)
        _check_found(annotations, sources, parser)
        self._by_document, offsets = annotations.join(ds, sources), annotations.offsets
        unit = options.span_unit or ds.manifest.extra.get("ingest", {}).get("span_unit")
        texts = known_text(ds, options.tokenizer, unit) if offsets and unit != "token" else None
        dtype = None if concepts is None else concepts.dtype
        rules = replace(options.rules, span_unit=unit)
        self._placer = Placer(ds=ds, track=options.track, sources=sources, concepts=dtype, rules=rules, texts=texts)
        self._sure = texts is None or unit is not None or options.tokenizer is not None
        self.unit = UNITS[(unit or "character") if texts else "token"].plural if offsets else None
        self.losses = self._placer.losses

    def __iter__(self) -> Iterator[tuple[int, dict[str, BulkSpans]]]:
        for items in self._by_document:
            if not self._sure and (items.stop != WHOLE).any():
                self._placer.check_unit(items)
                self._sure = True
            yield from self._placer.place(items)


def _unsorted(out: str, problem: str) -> ReadError:
    return ReadError(
        out,
        f"annotations cannot be sorted: {problem}",
        fix=f"pass a larger --sort-memory, or make room on the disk of {out}",
    )


class _Rows:
    """The rows of the files, or the first ones of each, as batches of `Annotations`. bad: those that were skipped."""

    def __init__(
        self, sources: Sequence[Source], parser: BatchParser, limit: int, on_bad: OnBad | None, first: float | None
    ) -> None:
        self._sources, self._parser, self._limit, self._on_bad = sources, parser, limit, on_bad
        self._first = None if first in (None, math.inf) else int(first or 0)
        self.bad = 0

    def __iter__(self) -> Iterator[Any]:
        for k, source in enumerate(self._sources):
            if source.row_groups is None:
                skip = partial(self._skip, source)
                rows = read_rows(source, self._limit, None, None if self._on_bad is None else skip)
                yield from self._singly(k, islice(rows, self._first))
            else:
                yield from self._batches(k, source, len(source.row_groups))
        for source in self._sources:
            source.check_unchanged()

    def _batches(self, k: int, source: Source, groups: int) -> Iterator[Any]:
        """Of a parquet file: what can be by columns, and the other rows."""
        ignored, numbers = self._parser.ignored, self._parser.values
        for table, first, _ in read_row_groups(source.path, 0, groups, None, source.columns, ignored, numbers):
            if self._first is not None and first >= self._first:
                break
            some = table if self._first is None else table.slice(0, self._first - first)
            found, odd = self._parser.parse_batch(some)
            for one in found:
                yield found_batch(one, k, first)
            yield from self._singly(k, rows_of(source.path, some, np.flatnonzero(odd), first))

    def _skip(self, source: Source, number: int, problem: str) -> None:
        if self._on_bad is None:
            raise InputError.saying(source.row_name(number), problem)
        self._on_bad(source.path, source.row_name(number).removeprefix(f"{source.path}: "), problem)
        self.bad += 1

    def _singly(self, k: int, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[Any]:
        """Of (number, row) of a file."""
        source, found, size = self._sources[k], list[tuple[Any, ...]](), 0
        texts = is_csv(source.path)
        for number, row in rows:
            try:
                document, external, spans, content = self._parser.parse(self._parser.texts(row) if texts else row)
            except ValueError as error:
                self._skip(source, number, str(error))
                continue
            for part, (start, stop, record, own) in enumerate(spans):
                found.append((document, external, start, stop, k, number, part, content, record, own))
                size += len(record) + len(own or "") + 150
            if size > _BATCH_BYTES:
                yield as_batch([*zip(*found, strict=True)])
                found, size = [], 0
        if found:
            yield as_batch([*zip(*found, strict=True)])


def _check_found(annotations: Annotations, sources: Sequence[Source], parser: BatchParser) -> None:
    if annotations.count and parser.unseen:
        raise InputError(
            sources[0].path,
            f"no column {min(parser.unseen)!r} in any row of {counted(len(sources), 'file')}",
            "each column that is named",
            "correct its name (--column)",
        )
    if not annotations.count:
        raise InputError(
            sources[0].path,
            f"no annotation in {counted(len(sources), 'file')}",
            "at least one annotation",
            "pass files with annotations, or name the columns of these: --column OURS=THEIRS",
        )


def _assemble(
    ds: Ranges, out: str, written: Mapping[str, ShardTracks], options: AnnotateOptions, vocabulary: Vocabulary | None
) -> Manifest:
    """The old manifest as seen from `out`, with the new tracks."""
    old = moved(ds.manifest, ds.files.roots.directory, out)
    files, columns, tracks = dict(old.shards.files), dict(old.shards.tracks), dict(old.tracks)
    for name, new in written.items():
        new.finish()
        columns[name] = new.column
        files.update({f"{name}.{kind}": new.files[kind] for kind in KINDS})
        tracks[name] = Track(
            codec=options.codec,
            parameters=options.parameters or {},
            vocabulary=vocabulary,
            max_spans=new.max_spans,
            max_items=new.max_items,
        )
    files = {kind: files[kind] for kind in fmt.file_kinds(sorted(tracks))}
    shards = replace(old.shards, files=files, tracks=columns)
    mode = "stream-with-metadata" if old.mode == "token-stream" else old.mode
    return replace(old, mode=mode, created_by=CREATED_BY, tracks=tracks, shards=shards)
