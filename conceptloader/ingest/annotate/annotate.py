"""New tracks over an existing dataset, foreign token files included: a new dataset that refers to the old files."""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from conceptloader.base.options import options_from
from conceptloader.base.terminal import counted
from conceptloader.errors import ConfigError, InputError, ReadError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.files import Files, load_manifest
from conceptloader.format.read.kept import copy_tokenizer
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.manifest import CREATED_BY, Manifest, Track, level_names
from conceptloader.format.spec.paths import Roots
from conceptloader.format.spec.vocabulary import Vocabulary, describe_vocabulary
from conceptloader.format.tools.columns import join_columns, write_columns
from conceptloader.format.tools.derived import moved, new_directory, warn_of_roots
from conceptloader.format.write.finalize import write_manifest
from conceptloader.format.write.ladder import with_border_windows
from conceptloader.ingest.annotate.join import Annotations
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.annotate.place import Placer
from conceptloader.ingest.annotate.rows import OnBad, Rows
from conceptloader.ingest.annotate.write import KINDS, NewTrack, write_tracks
from conceptloader.ingest.database import database
from conceptloader.ingest.records.inputs import Source, find_sources
from conceptloader.storage.durable import write_file


def annotate(
    dataset: str | os.PathLike[str],
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    roots: Sequence[str | os.PathLike[str]] | None = None,
    on_bad: OnBad | None = None,
    **given: Any,
) -> Manifest:
    """Make the dataset `out`: the tokens and tracks of `dataset` where they are, and a new track from `inputs`.

    Args:
        dataset: Directory of a dataset.
        inputs: Jsonl (also .gz, .zst) or parquet files of annotations in any order, see docs/annotations.md;
            documents without one are gaps. An annotation of a whole document holds its eos, too. Memory is bounded for
            any size.
        out: Directory of the new one, or of the same build that was interrupted.
        roots: See `open_dataset`.
        on_bad: Called with (file, place, problem) for rows that cannot be read, which are then skipped. A failure
            leaves no files. What was done is in the manifest: `extra["annotated"][track]`.
        given: Options of `conceptloader annotate --help`, with `_` for `-`; `groups` and `details` of the vocabulary.

    Returns:
        The manifest of the new dataset.

    Raises:
        ConfigError: For arguments, and for offsets without a unit that could be either.
        InputError: For annotations of unknown documents, outside of their document or corrupt, naming file and line,
            and if more than `max_unaligned_spans` of them got no token.
        FormatError: A file is corrupt or not as its manifest says.
        ReadError: A file cannot be read.
    """
    sources = find_sources(inputs)
    options = options_from(AnnotateOptions, "annotate", given).resolved()
    track = options.check()
    manifest, allowed = load_manifest(dataset, roots)
    with (
        closing(Files(manifest, allowed)) as files,
        new_directory(out) as working,
        database(working, f"{options.sort_memory}B", partial(_unsorted, os.fspath(out))) as opened,
    ):
        ds = Dataset(files)
        for name in files.columns:  # which the new dataset gets in the end
            files.columns.get(name)
        names = level_names(options.track, options.depth)
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
        rows = Rows(sources, options, on_bad)
        annotations = Annotations(opened, working, rows.tables(), ds, sources)
        _check_found(annotations.count, sources, rows.unseen)
        placer = Placer(ds, sources, options, annotations)
        items = annotations.join()
        written = {name: NewTrack(name, track, len(manifest.shards)) for name in names}
        write_tracks(working, written, manifest, placer.place(items))
        placer.losses.check(options.max_unaligned_spans, str(sources[0].path), "nothing was written")
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
            "unit": placer.unit,
            "loss": placer.losses.to_json().get(options.track),
            **({"bad_rows": rows.bad} if rows.bad else {}),
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


def _check_found(count: int, sources: Sequence[Source], unseen: Collection[str]) -> None:
    if count and unseen:
        raise InputError(
            sources[0].path,
            f"no column {min(unseen)!r} in any row of {counted(len(sources), 'file')}",
            "each column that is named",
            "correct its name (--column)",
        )
    if not count:
        raise InputError(
            sources[0].path,
            f"no annotation in {counted(len(sources), 'file')}",
            "at least one annotation",
            "pass files with annotations, or name the columns of these: --column OURS=THEIRS",
        )


def _unsorted(out: str, problem: str) -> ReadError:
    return ReadError(
        out,
        f"annotations cannot be sorted: {problem}",
        fix=f"pass a larger --sort-memory, or make room on the disk of {out}",
    )


def _assemble(
    ds: Dataset, out: str, written: Mapping[str, NewTrack], options: AnnotateOptions, vocabulary: Vocabulary | None
) -> Manifest:
    """The old manifest as seen from `out`, with the new tracks."""
    old = moved(ds.manifest, ds.files.roots.directory, out)
    files, columns, tracks = dict(old.shards.files), dict(old.shards.tracks), dict(old.tracks)
    for name, new in written.items():
        columns[name] = new.column
        files.update({f"{name}.{kind}": new.files[kind] for kind in KINDS})
        tracks[name] = Track(
            codec=options.codec,
            parameters=options.parameters or {},
            vocabulary=vocabulary,
            max_spans=new.max_spans,
            max_items=new.max_items,
            levels=options.depth if name == options.track else 1,
        )
    files = {kind: files[kind] for kind in fmt.file_kinds(sorted(tracks))}
    shards = replace(old.shards, files=files, tracks=columns)
    mode = "stream-with-metadata" if old.mode == "token-stream" else old.mode
    return replace(old, mode=mode, created_by=CREATED_BY, tracks=tracks, shards=shards)
