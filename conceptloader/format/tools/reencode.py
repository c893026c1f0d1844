"""Writing a dataset again with other track encodings; tokens, documents, ids, records, columns stay what they are."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial

import numpy as np

from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import items_of, records_of, spans_of
from conceptloader.format.read.files import Files, load_manifest
from conceptloader.format.read.kept import copy_tokenizer
from conceptloader.format.read.reader import ShardReader
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.options import BuildOptions, TrackOptions
from conceptloader.format.spec.vocabulary import load_details, load_vocabulary
from conceptloader.format.tools.columns import copy_columns
from conceptloader.format.write.build import create_writer
from conceptloader.format.write.finalize import finalize
from conceptloader.format.write.shard import ShardWriter
from conceptloader.storage.lock import build_lock

_RECORDS = 4096  # copied at a time


def reencode(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    encodings: Mapping[str, str],
    roots: Sequence[str | os.PathLike[str]] | None = None,
) -> Manifest:
    """Make a dataset at `out` whose tracks are encoded in another way.

    Tracks that are not named are "auto", the smaller encoding in each shard. The stream fingerprint stays the same
    unless shards of different token types were concatenated (they become one), so running trainings can change over.
    Called again after an interruption, it resumes where it was.

    Args:
        path: Directory of a dataset.
        out: Directory of the new one, or of the same build that was interrupted.
        encodings: Track -> "dense", "spans" or "auto".
        roots: See `open_dataset`.

    Returns:
        The manifest of the new dataset.

    Raises:
        ConfigError: For an unknown track or an adopted file without documents; what reading and building raise.
    """
    manifest, allowed = load_manifest(path, roots)
    unknown = sorted(set(encodings) - set(manifest.tracks))
    if unknown:
        raise ConfigError(
            path, f"no tracks {unknown}", f"some of {sorted(manifest.tracks)}", "pass tracks with some of these names"
        )
    bare = np.flatnonzero((manifest.shards.documents == 0) & (manifest.shards.tokens > 0))
    if len(bare):
        raise ConfigError(
            path,
            f"no documents in shard {bare[0]}",
            "documents in each shard",
            "run `conceptloader adopt` with --document-end",
        )
    tracks = {
        name: TrackOptions(
            codec=track.codec,
            parameters=track.parameters,
            encoding=encodings.get(name, "auto"),
            vocabulary=load_vocabulary(allowed, track.vocabulary) if track.vocabulary else None,
            groups=track.vocabulary.groups if track.vocabulary else (),
            details=load_details(allowed, track.vocabulary) if track.vocabulary else None,
        )
        for name, track in manifest.tracks.items()
    }
    source = ShardReader(Files(manifest, allowed))
    for name in source.files.columns:
        source.files.columns.get(name)
    source.files.look()  # those of columns included, which are copied in the end
    fields = manifest.layouts[0].extra_fields(manifest.tracks)
    options = BuildOptions(
        mode=manifest.mode,
        tokenizer=manifest.tokenizer,
        token_type="u2" if all(layout.token_type in ("u1", "u2") for layout in manifest.layouts) else "u4",
        fields=fields,
        tracks=tracks,
        block_tokens=manifest.block_tokens,
    )
    inputs = {"stream": manifest.stream_fingerprint(), "tracks": manifest.tracks_fingerprint()}
    with build_lock(out), closing(source.files):
        build = create_writer(out, options, inputs=[inputs], plan=list(range(len(manifest.shards))))
        copy_tokenizer(source.files, build.path)
        for shard in range(build.num_shards):
            if not build.is_finished(shard):
                with build.shard(shard) as writer:
                    _copy(source, shard, writer, list(fields))
        return finalize(out, also=partial(copy_columns, source.files, build.path))


def _copy(source: ShardReader, shard: int, writer: ShardWriter, fields: Sequence[str]) -> None:
    tracks = [name for name, column in source.table.tracks.items() if column.encoding[shard] is not None]
    for track in tracks:
        total = int(source.table.tracks[track].records[shard])
        for first in range(0, total, _RECORDS):
            numbers = np.arange(first, min(first + _RECORDS, total))
            for record in records_of(source, shard, track, numbers):
                writer.add_record(track, bytes(record))
    for ordinal in range(int(source.table.documents[shard])):
        start, stop = source.document_range(shard, ordinal)
        low, high = np.array([start]), np.array([stop])
        items = items_of(source, shard, low, high)
        spans = {}
        for track in tracks if start < stop else ():
            found, numbers = spans_of(source, shard, track, low, high)
            begin, end = np.maximum(found.first, start) - start, np.minimum(found.end, stop) - start
            spans[track] = list(zip(begin.tolist(), end.tolist(), numbers.tolist(), strict=True))
        writer.add_document(
            items["token"],
            spans=spans,
            id=source.external_id(shard, ordinal) or "",
            fields={name: items[name] for name in fields},
        )
