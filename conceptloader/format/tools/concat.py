"""Concatenate datasets by reference: a new manifest over the shards of others; nothing is copied or encoded again."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conceptloader.errors import ConfigError
from conceptloader.format.read.files import Files, load_manifest
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import offsets_of
from conceptloader.format.spec.layout import StreamLayout
from conceptloader.format.spec.manifest import CREATED_BY, Manifest, Tokenizer, Track, most_items
from conceptloader.format.spec.paths import Roots
from conceptloader.format.spec.shardtable import FileColumn, ShardTable, TrackColumn
from conceptloader.format.tools.columns import join_columns, write_columns
from conceptloader.format.tools.derived import check_new_directory, end_to_end, moved, warn_of_roots
from conceptloader.format.write.finalize import write_manifest
from conceptloader.format.write.ladder import count_items, with_border_windows
from conceptloader.storage.durable import make_directories

SOME_BOS = "of some documents"
_Source = tuple[str, Manifest]  # a dataset's directory, and its manifest as seen from the new one


def concat(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    roots: Sequence[str | os.PathLike[str]] | None = None,
    allow_mixed_tokenizers: bool = False,
) -> Manifest:
    """Make a dataset at `out` (new or empty) of the shards of `paths`, in that order.

    A track or column of one dataset has nothing in the shards of the others. Datasets whose tracks, columns, fields,
    modes or tokenizers contradict each other are rejected (tokenizers: unless allow_mixed_tokenizers, which leaves the
    new dataset without one).

    Args:
        paths: Directories of datasets.
        out: Directory of the new one.
        roots: Directories that may hold files of the datasets; by default that which holds each.
        allow_mixed_tokenizers: Accept datasets of different tokenizers.

    Returns:
        The manifest of the new dataset.

    Raises:
        ConfigError: The datasets contradict each other; nothing is written. Opening them raises other errors.
    """
    if isinstance(paths, (str, os.PathLike)) or not paths:
        raise ConfigError(
            "concat", repr(paths), "a list of at least one dataset", "pass the paths of the datasets as a list"
        )
    target = os.path.abspath(out)
    files = [Files(*load_manifest(path, roots)) for path in paths]
    check_new_directory(target)
    known = {name for one in files for name, track in one.manifest.tracks.items() if track.max_items is not None}
    directories = [one.roots.directory for one in files]
    sources = [(path, moved(_counted(one, known), path, target)) for path, one in zip(directories, files, strict=True)]
    manifest = _join(sources, allow_mixed_tokenizers)
    joined = [
        {"path": os.path.relpath(directory, target), "stream_fingerprint": source.stream_fingerprint()}
        for directory, source in sources
    ]
    how = [source.extra.get("ingest") for _, source in sources]
    bos = [(one or {}).get("bos") for one in how]
    kept = how[0] if all(one == how[0] for one in how) else {}
    if not kept and any(one is not None for one in bos):  # which a later `annotate` has to know
        kept = {"bos": bos[0] if all(one == bos[0] for one in bos) else SOME_BOS}
    manifest = replace(manifest, extra={**({"ingest": kept} if kept else {}), "joined": joined})
    every = Roots(target, list({root for one in files for root in one.roots.roots}))
    firsts = offsets_of([len(source.shards) for _, source in sources])[:-1].tolist()
    manifest = with_border_windows(manifest, every, firsts)
    columns = join_columns("concat", files, manifest, target)
    make_directories(target)
    write_columns(columns, target)
    write_manifest(manifest, target)
    warn_of_roots(manifest, target)
    return manifest


def _counted(files: Files, known: Collection[str]) -> Manifest:
    """The manifest, in which `max_items` of tracks of numbers is counted where others know it."""
    tracks = dict(files.manifest.tracks)
    for name in tracks.keys() & known:
        if tracks[name].codec == "numpy" and tracks[name].max_items is None:
            tracks[name] = replace(tracks[name], max_items=count_items(files, name))
            files.close()
    return replace(files.manifest, tracks=tracks)


def _join(sources: Sequence[_Source], allow_mixed_tokenizers: bool) -> Manifest:
    manifests = [manifest for _, manifest in sources]
    names = sorted({name for manifest in manifests for name in manifest.tracks})
    if len(names) > fmt.MAX_TRACKS:
        raise ConfigError(
            "concat",
            f"{len(names)} tracks in all",
            f"at most {fmt.MAX_TRACKS}",
            f"pass datasets with at most {fmt.MAX_TRACKS} tracks together",
        )
    _agree(sources, "fields", lambda manifest: manifest.layouts[0].extra_fields(manifest.tracks))
    _agree(sources, "fields, once all tracks are there,", lambda manifest: manifest.layouts[0].extra_fields(names))
    _agree(sources, "block_tokens", lambda manifest: manifest.block_tokens)
    _agree(sources, "mode is document", lambda manifest: manifest.mode == "document")
    modes = {manifest.mode for manifest in manifests}
    if not allow_mixed_tokenizers:
        _agree(sources, "tokenizer", lambda manifest: manifest.tokenizer)
    tokenizers: set[Tokenizer | None] = {manifest.tokenizer for manifest in manifests}

    layouts: list[StreamLayout] = list(dict.fromkeys(layout for m in manifests for layout in m.layouts))
    numbers = [np.array([layouts.index(layout) for layout in m.layouts])[m.shards.layout] for m in manifests]
    tables = [manifest.shards for manifest in manifests]
    table: ShardTable = end_to_end(
        [replace(manifest.shards, layout=number) for manifest, number in zip(manifests, numbers, strict=True)],
        files={
            kind: end_to_end([t.files.get(kind) or FileColumn.absent(len(t)) for t in tables])
            for kind in fmt.file_kinds(names)
        },
        tracks={name: end_to_end([t.tracks.get(name) or TrackColumn.absent(len(t)) for t in tables]) for name in names},
    )
    return Manifest(
        mode=modes.pop() if len(modes) == 1 else "stream-with-metadata",
        created_by=CREATED_BY,
        tokenizer=tokenizers.pop() if len(tokenizers) == 1 else None,
        block_tokens=manifests[0].block_tokens,
        layouts=tuple(layouts),
        tracks={name: _track(name, sources) for name in names},
        shards=table,
    )


def _agree(sources: Sequence[_Source], what: str, value: Callable[[Manifest], object]) -> None:
    first = value(sources[0][1])
    for directory, manifest in sources[1:]:
        if value(manifest) != first:
            raise ConfigError(
                f"concat: {what}",
                f"{value(manifest)} in {directory}",
                f"{first} as in {sources[0][0]}",
                "name both under `datasets` of one configuration, which mixes them",
            )


def _track(name: str, sources: Sequence[_Source]) -> Track:
    """The track as all sources that have it agree on, with the largest maxima."""
    having = [source for source in sources if name in source[1].tracks]

    def definition(manifest: Manifest) -> Mapping[str, Any]:
        track = manifest.tracks[name]
        entry = track.vocabulary
        found: dict[str, Any] = {"vocabulary": entry and entry.checksum, "groups": entry and entry.groups}
        found["details"] = entry and entry.details and entry.details.checksum
        found["a level of"] = next(head for head, levels in manifest.levels.items() if name in levels)
        return {"codec": track.codec, "parameters": dict(track.parameters), **found}

    _agree(having, f"track {name!r}", definition)
    tracks = [manifest.tracks[name] for _, manifest in having]
    items = ((found.tracks[name].max_items, int(found.shards.tracks[name].records.sum())) for _, found in having)
    spans = tuple(map(max, zip(*(track.max_spans for track in tracks), strict=True)))
    levels = max(track.levels for track in tracks)
    return replace(tracks[0], max_spans=spans, max_items=most_items(items), levels=levels)
