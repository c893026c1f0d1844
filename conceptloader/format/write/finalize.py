"""Finishing a build: all shards are there and of this build, nothing else is, then the manifest is written."""

import contextlib
import os

import numpy as np

from conceptloader.errors import FormatError, InputError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.jsonfile import load_sealed
from conceptloader.format.spec.layout import StreamLayout
from conceptloader.format.spec.manifest import CREATED_BY, Manifest, Track, most_items, parse_manifest
from conceptloader.format.spec.paths import Roots
from conceptloader.format.spec.shardtable import FileColumn, ShardTable, TrackColumn
from conceptloader.format.write.build import Build, ShardReport, open_writer
from conceptloader.format.write.ladder import with_border_windows
from conceptloader.storage.durable import TEMPORARY, sync_directory, write_file


def finalize(path: str | os.PathLike[str]) -> Manifest:
    """Write the manifest of a build whose shards are all finished.

    Nothing is removed but temporary files which interrupted writers left.

    Args:
        path: Directory of the build.

    Returns:
        The manifest, as it was written.

    Raises:
        FormatError: For shards that are missing, of another build or of another size than their writer said, and for
            files that belong to no shard.
        InputError: For a build without a token.
    """
    build = open_writer(path)
    if os.path.exists(os.path.join(build.path, fmt.MANIFEST)):
        raise FormatError(
            build.path,
            str(fmt.MANIFEST),
            "an unfinished build",
            "pass the directory of an unfinished build: nothing was changed",
        )
    reports = [build.report(shard) for shard in range(build.num_shards)]
    missing = [shard for shard, report in enumerate(reports) if report is None]
    if missing:
        shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        raise FormatError(
            build.path,
            f"{len(missing)} of {build.num_shards} shards missing ({shown})",
            "every shard",
            "write these shards (Build.shard), then call finalize() again",
        )
    manifest = _assemble(build, [report for report in reports if report is not None])
    if not manifest.num_tokens:
        raise InputError(build.path, "no token in any shard", "at least one token", "pass INPUTs of which one has text")
    _check_files(build, manifest)
    return write_manifest(with_border_windows(manifest, Roots(build.path, None)), build.path)


def write_manifest(manifest: Manifest, directory: str) -> Manifest:
    """Write manifest.json. What readers would refuse is never written: FormatError. Returns: what they will read."""
    target = os.path.join(directory, fmt.MANIFEST)
    data = manifest.dump()
    manifest = parse_manifest(load_sealed(data, target))
    write_file(target, data)
    return manifest


def _assemble(build: Build, reports: list[ShardReport]) -> Manifest:
    layouts: list[StreamLayout] = []
    numbers = []
    for report in reports:
        layout = StreamLayout(report.layout)
        if layout not in layouts:
            layouts.append(layout)
        numbers.append(layouts.index(layout))

    files = {}
    for kind in fmt.file_kinds(sorted(build.options.tracks)):
        found = [report.files.get(kind) for report in reports]
        files[kind] = FileColumn(
            np.array([entry.size if entry else -1 for entry in found], np.int64),
            [entry.checksum if entry else None for entry in found],
            [entry.sample if entry else None for entry in found],
        )
    tracks, columns = {}, {}
    for name, options in build.options.tracks.items():
        facts = [report.tracks[name] for report in reports]
        columns[name] = TrackColumn(
            encoding=[entry.encoding for entry in facts],
            records=np.array([entry.records for entry in facts], np.int64),
            entries=np.array([entry.entries for entry in facts], np.int64),
        )
        tracks[name] = Track(
            codec=options.codec,
            parameters=options.parameters,
            vocabulary=build.vocabularies.get(name),
            max_spans=tuple(max(counts) for counts in zip(*(entry.max_spans for entry in facts), strict=True)),
            max_items=most_items((entry.max_items, entry.records) for entry in facts),
            levels=options.levels,
        )
    table = ShardTable(
        path=[build.shard_name(shard) for shard in range(build.num_shards)],
        tokens=np.array([report.tokens for report in reports], np.int64),
        layout=np.array(numbers, np.int64),
        offset=np.zeros(len(reports), np.int64),
        documents=np.array([report.documents for report in reports], np.int64),
        token_checksum=[report.token_checksum for report in reports],
        files=files,
        tracks=columns,
    )
    return Manifest(
        mode=build.options.mode,
        created_by=CREATED_BY,
        tokenizer=build.options.tokenizer,
        block_tokens=build.options.block_tokens,
        layouts=tuple(layouts),
        tracks=tracks,
        shards=table,
        extra=build.options.extra,
    )


def _check_files(build: Build, manifest: Manifest) -> None:
    """Every file has its size, no other file is there; temporary files are removed."""
    sizes = {fmt.BUILD: -1, **{entry.path: entry.size for entry in build.vocabularies.values()}}
    sizes.update({entry.details.path: entry.details.size for entry in build.vocabularies.values() if entry.details})
    for shard, name in enumerate(manifest.shards.path):
        sizes[f"{name}.shard.json"] = -1
        for kind, column in manifest.shards.files.items():
            if column.size[shard] >= 0:
                sizes[f"{name}.{kind}"] = int(column.size[shard])
    foreign, temporary = [], []
    with os.scandir(build.path) as entries:
        for entry in entries:
            expected = sizes.pop(entry.name, None)
            if expected is None:
                if TEMPORARY.fullmatch(entry.name):
                    temporary.append(entry.path)
                elif (
                    not entry.name.startswith(".")
                    and entry.name != fmt.TOKENIZER
                    and not fmt.DERIVED.fullmatch(entry.name)
                ):
                    foreign.append(entry.name)
            elif expected >= 0 and entry.stat().st_size != expected:
                raise FormatError(
                    entry.path,
                    f"{entry.stat().st_size} bytes",
                    f"{expected} as its writer said",
                    "remove the files of this shard, its .shard.json first, and write it again",
                )
    if sizes:
        raise FormatError(
            build.path,
            f"no file {sorted(sizes)[0]} (of {len(sizes)} missing)",
            "all files of finished shards",
            "remove the .shard.json of this shard, and run its worker again",
        )
    if foreign:
        raise FormatError(
            build.path,
            f"{', '.join(sorted(foreign)[:5])} ({len(foreign)} in all)",
            "only files of this build",
            f"move these files out of {build.path}",
        )
    for path in temporary:
        with contextlib.suppress(FileNotFoundError):  # of another process that builds here, and has just renamed it
            os.unlink(path)
    if temporary:
        sync_directory(build.path)
