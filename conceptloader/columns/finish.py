"""From the files that writers left to the column: what lacks is named, and values are put into the place of tokens."""

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import xxhash

from conceptloader.columns.parts import RECORD, Covered, Parts, taken
from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import starts_in
from conceptloader.format.read.dataset import Dataset, open_dataset
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
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.paths import Roots
from conceptloader.storage.durable import Spool, require_local, require_own, sync_directory, write_file
from conceptloader.storage.reads import named, opened, read_at

_BLOCK = 1 << 25  # bytes of items that are put together at a time
_PLACED = np.dtype([("record", RECORD), ("file", "<u8"), ("offset", "<u8")])

Path = str | os.PathLike[str]


def finish(path: Path, name: str, partial: bool = False, roots: Sequence[Path] | None = None) -> ColumnFile:
    """Make the column of what was written; see ColumnWriter.finish."""
    with open_dataset(path, roots) as dataset:
        require_local(dataset.path)
        parts = Parts(dataset.path, name)
        if os.path.lexists(os.path.join(dataset.path, column_file(name))):
            if not os.path.isdir(parts.path):
                raise taken(dataset.path, name)
            parts.remove()  # of a process that was killed after it had finished the column
            return dataset.files.columns[name]
        merging = _Merging(dataset, name, parts, parts.agree(dataset.manifest))
        if not partial:
            merging.require_whole()
        column = merging.run(partial)
        if not write_file(os.path.join(dataset.path, column_file(name)), column.dump(), exclusive=True):
            raise taken(dataset.path, name)
        parts.remove()
        return column


class _Merging:
    """records: what files have, in order of `start`."""

    def __init__(self, dataset: Dataset, name: str, parts: Parts, column: ColumnFile) -> None:
        self.dataset, self.name, self.parts, self.column, self.covered = dataset, name, parts, column, Covered()
        self.kinds, self.files = (items_kind(name), holes_kind(name)), parts.files()
        found = [np.zeros(0, _PLACED)]
        for k, file in enumerate(self.files):
            records = parts.records(file, column.itemsize)
            placed = np.zeros(len(records), _PLACED)
            placed["record"], placed["file"] = records, k
            placed["offset"] = offsets_of(column.itemsize * (records["stop"] - records["start"]).astype(np.int64))[:-1]
            found.append(placed)
        self.records = np.concatenate(found)
        self.records = self.records[np.argsort(self.records["record"]["start"])]
        self.start, self.stop = (self.records["record"][name].astype(np.int64) for name in ("start", "stop"))
        self.reach = np.maximum.accumulate(self.stop)
        self.covered.add(self.records["record"])

    def _starts(self, shard: int) -> Ints:
        """First tokens of documents of a shard, and of one without documents, which have no value."""
        begins: Ints = starts_in(self.dataset.files, shard) + self.dataset.shard_starts[shard]
        missing: Ints = begins[self.covered.counts(begins, begins + 1) == 0]
        return missing

    def require_whole(self) -> None:
        """Raise ConfigError for tokens without a value, but for those that begin documents."""
        (start, stop), tokens = self.covered.intervals, self.dataset.num_tokens
        lengths = np.append(start, tokens) - np.append(0, stop)
        begin = sum(len(self._starts(shard)) for shard in range(self.dataset.num_shards))
        if lengths.sum() == begin:
            return
        first = np.append(0, stop)[np.argmax(lengths > (lengths > 1).any())]
        raise ConfigError(
            self.parts.path,
            f"{lengths.sum():,} of {tokens:,} tokens without a value ({begin:,} begin documents, and need none), "
            f"some from token {first:,} on, and the last {lengths[-1]:,} of the dataset",
            "a value for each token that does not begin a document",
            "write the batches of which has(batch) is False, in mode document or with packing, which read the last "
            f"tokens too; or call finish(partial=True), and set outputs.columns.{self.name}.missing",
        )

    def run(self, partial: bool) -> ColumnFile:
        count = self.dataset.num_shards
        files, holes = ItemFiles.absent(count), HoleFiles.absent(count, tokens=0, starts=0)
        for shard in range(count):
            first, end = self.dataset.shard_starts[shard : shard + 2]
            if first < end and not (partial and not self._touching(first, end).size):
                self._merge(shard, first, end, files, holes)
        for folder in {os.path.dirname(self._target(self.kinds[0], shard)) for shard in range(count)}:
            sync_directory(folder)
        return replace(self.column, files=files, holes=holes if holes.tokens else None)

    def _touching(self, low: int, high: int) -> Any:
        """What has values of tokens [low, high), in the order in which it was written."""
        first, last = np.searchsorted(self.reach, low, side="right"), np.searchsorted(self.start, high)
        some = self.records[first:last][self.stop[first:last] > low]
        return some[np.lexsort((some["offset"], some["file"]))]

    def _merge(self, shard: int, first: int, end: int, files: ItemFiles, holes: HoleFiles) -> None:
        step = max(_BLOCK // self.column.itemsize // 8, 1) * 8  # whole bytes of holes
        missing = 0
        with Spool(self._target(self.kinds[0], shard)) as items, Spool(self._target(self.kinds[1], shard)) as gaps:
            for low in range(first, end, step):
                values, known = self._block(low, min(low + step, end))
                items.write(values)
                gaps.write(pack_holes(~known))
                missing += int((~known).sum())
            for table, kind, spool in zip((files, holes), self.kinds, (items, gaps)[: 1 + bool(missing)], strict=False):
                spool.commit()
                table.size[shard], table.checksum[shard], table.sample[shard] = spool.facts().values()
                own, usual = own_file(self.dataset.manifest, kind, shard)
                table.path[shard] = None if own == usual else own
        holes.tokens += missing
        holes.starts += len(self._starts(shard)) if missing else 0

    def _block(self, low: int, high: int) -> tuple[Any, Any]:
        """(items [n, bytes], which are known) of tokens [low, high). Raises: FormatError for a corrupt file."""
        item = self.column.itemsize
        values, known = np.zeros((high - low, item), np.uint8), np.zeros(high - low, np.bool_)
        for k, some in groupby(self._touching(low, high).tolist(), lambda row: int(row[1])):
            path = os.path.join(self.parts.path, self.files[k])
            with opened(path) as descriptor:
                for (start, stop, kept), _, offset in some:
                    data = read_at(descriptor, offset, (stop - start) * item, path)
                    if xxhash.xxh3_64_intdigest(data) != kept:
                        raise self.parts.corrupt(self.files[k])
                    a, b = max(start, low), min(stop, high)
                    values[a - low : b - low] = np.frombuffer(data, np.uint8).reshape(-1, item)[a - start : b - start]
                    known[a - low : b - low] = True
        return values, known

    def _target(self, kind: str, shard: int) -> str:
        return _own_path(self.dataset.files.roots, self.dataset.manifest, kind, shard)


def own_file(manifest: Manifest, kind: str, shard: int) -> tuple[str, str]:
    """A file of a shard, next to its others, unless these are in the directory of another dataset; its usual name."""
    prefix = manifest.shards.path[shard]
    elsewhere = os.path.normpath(prefix).startswith(("/", "../"))
    return f"{kind}.{shard:05}" if elsewhere else f"{prefix}.{kind}", f"{prefix}.{kind}"


def _own_path(roots: Roots, manifest: Manifest, kind: str, shard: int) -> str:
    path = roots.resolve(own_file(manifest, kind, shard)[0])
    require_own(roots.directory, os.path.dirname(path))
    return path


def remove(path: Path, name: str, roots: Sequence[Path] | None = None) -> list[str]:
    """Remove a column, or what was written of one that is not finished: NAME.column.json first, then its data.

    Arrays that were left in place stay.

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
