"""From the files that writers left to the column: what lacks is named, and values are put into the place of tokens."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise

import numpy as np

from conceptloader.columns.parts import Parts, covered, taken
from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import starts_in
from conceptloader.format.read.dataset import open_dataset
from conceptloader.format.read.files import load_manifest
from conceptloader.format.spec.columnfile import (
    ColumnFile,
    HoleFiles,
    ItemFiles,
    column_file,
    holes_kind,
    items_kind,
    pack_holes,
)
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.paths import Roots
from conceptloader.storage.durable import Spool, require_local, require_own, sync_directory, write_file
from conceptloader.storage.reads import named

_BLOCK = 1 << 27  # bytes of items, and of what goes with them, that are put together at a time

Path = str | os.PathLike[str]


def finish(path: Path, name: str, partial: bool = False, roots: Sequence[Path] | None = None) -> ColumnFile:
    """Make the column of what was written; see ColumnWriter.finish."""
    with open_dataset(path, roots) as dataset:
        require_local(dataset.path)
        parts, head = Parts(dataset.path, name), os.path.join(dataset.path, column_file(name))
        if os.path.lexists(head):
            if not os.path.isdir(parts.path):
                raise taken(dataset.path, name)
            parts.remove()  # of a process that was killed after it had finished the column
            return dataset.files.columns[name]
        column = parts.agree(dataset.manifest)
        files, item = ItemFiles.absent(dataset.num_shards), column.itemsize
        values = parts.read(item)
        known, starts = covered(values), np.array(dataset.shard_starts)
        missing, begin = np.diff(starts - known(starts)), np.zeros(dataset.num_shards, np.int64)
        for shard in np.flatnonzero(missing).tolist():
            token = starts_in(dataset.files, shard) + starts[shard]
            begin[shard] = (known(token) == known(token + 1)).sum()
        if not partial and (missing > begin).any():
            raise ConfigError(
                parts.path,
                f"{missing.sum():,} of {starts[-1]:,} tokens without a value ({begin.sum():,} begin documents, and "
                "need none)",
                "a value for each token that does not begin a document",
                "write the batches of which has(batch) is False, in mode document or with packing, which read the last "
                f"tokens too; or call finish(partial=True), and set outputs.columns.{name}.missing",
            )
        some = np.diff(starts) > (missing if partial else 0)  # shards that get files
        missing, begin = np.where(some, missing, 0), np.where(some, begin, 0)
        lacking = HoleFiles.absent(dataset.num_shards, tokens=int(missing.sum()), starts=int(begin.sum()))
        step = max(_BLOCK // (8 * (item + 9)), 1) * 8  # whole bytes of holes
        for shard in np.flatnonzero(some).tolist():
            kinds = [items_kind(name), holes_kind(name)][: 2 if missing[shard] else 1]
            paths = [_own_path(dataset.files.roots, dataset.manifest, kind, shard) for kind in kinds]
            with ExitStack() as stack:
                spools = [stack.enter_context(Spool(one)) for one in paths]
                first, end = dataset.shard_starts[shard : shard + 2]
                for low, high in pairwise([*range(first, end, step), end]):
                    block, none = np.zeros(high - low, f"V{item}"), np.ones(high - low, np.bool_)
                    for part in values:
                        tokens, found = part.items(low, high)
                        block[tokens - low], none[tokens - low] = found, False
                    for spool, data in zip(spools, (block.view("u1"), pack_holes(none)), strict=False):
                        spool.write(data)
                for kind, table, spool in zip(kinds, (files, lacking), spools, strict=False):
                    spool.commit()
                    sync_directory(os.path.dirname(spool.path))
                    table.size[shard], table.checksum[shard], table.sample[shard] = spool.facts().values()
                    table.path[shard] = _own_file(dataset.manifest, kind, shard)
        for part in values:
            part.check()
        column = replace(column, files=files, holes=lacking if lacking.tokens else None)
        if not write_file(head, column.dump(), exclusive=True):
            raise taken(dataset.path, name)
        parts.remove()
        return column


def _own_file(manifest: Manifest, kind: str, shard: int) -> str | None:
    """Where a file of a shard is, if not next to its others, as these are in the directory of another dataset."""
    elsewhere = os.path.normpath(manifest.shards.path[shard]).startswith(("/", "../"))
    return f"{kind}.{shard:05}" if elsewhere else None


def _own_path(roots: Roots, manifest: Manifest, kind: str, shard: int) -> str:
    path = roots.resolve(_own_file(manifest, kind, shard) or f"{manifest.shards.path[shard]}.{kind}")
    require_own(roots.directory, os.path.dirname(path))
    return path


def remove(path: Path, name: str, roots: Sequence[Path] | None = None) -> list[str]:
    """Remove a column, or what was written of one that is not finished: NAME.column.json first, then its data.

    Returns: the files that it had. Raises: ConfigError if there is nothing of it; FormatError, ReadError.
    """
    manifest, allowed = load_manifest(path, roots)
    require_local(allowed.directory)
    parts, shards = Parts(allowed.directory, name), range(len(manifest.shards))
    head, kinds = os.path.join(allowed.directory, column_file(name)), (items_kind(name), holes_kind(name))
    files = [_own_path(allowed, manifest, kind, shard) for kind in kinds for shard in shards]
    found, is_written = [file for file in (head, *files) if os.path.lexists(file)], os.path.isdir(parts.path)
    if not found and not is_written:
        rule = "NAME.column.json of a column, or NAME.column.unfinished"
        fix = f"correct NAME, or begin it: column_writer(..., name={name!r})"
        raise ConfigError(allowed.directory, f"no column {name!r}", rule, fix)
    for file in found:
        with named(file, "removed"):
            os.unlink(file)
            if file == head:
                sync_directory(allowed.directory)
    if is_written:
        parts.remove()
    return found
