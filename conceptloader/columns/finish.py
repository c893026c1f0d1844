"""From what writers logged to the column: every range is compared with its hash, and what lacks is named."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import xxhash

from conceptloader.columns.unfinished import Plan, Unfinished, taken
from conceptloader.errors import ConfigError, FormatError
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
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.paths import Roots
from conceptloader.storage.durable import Spool, open_own, require_local, require_own, sync_directory, write_file
from conceptloader.storage.lock import hold, release
from conceptloader.storage.reads import named, read_at
from conceptloader.storage.sample import open_sample

_CHUNK = 1 << 22  # bytes, or tokens of a file of holes
_TAKEN = "another process finishes or removes this column ({holder}), expected a single one; wait for its end"


def finish(
    path: str | os.PathLike[str],
    name: str,
    partial: bool = False,
    keep: bool = False,
    roots: Sequence[str | os.PathLike[str]] | None = None,
) -> ColumnFile:
    """Make the column of what was logged; see ColumnWriter.finish. keep: of what was written twice, either counts."""
    with open_dataset(path, roots) as dataset:
        require_local(dataset.path)
        unfinished = Unfinished(dataset.path, name)
        if os.path.lexists(os.path.join(dataset.path, column_file(name))):
            return _finished(dataset, name, unfinished)
        plan = unfinished.agree(None)
        if dataset.stream_fingerprint != plan.stream_fingerprint:
            raise FormatError(
                f"{dataset.path}: stream_fingerprint",
                f"{dataset.stream_fingerprint}: the dataset was built again meanwhile",
                f"{plan.stream_fingerprint}, of the tokens whose values were written",
                f"restore {dataset.path}; {unfinished.path} stays as it is",
            )
        lock = hold(unfinished.lock, _TAKEN)
        try:
            unfinished.require_no_writer()
            return _Finishing(dataset, name, plan, unfinished, keep).run(partial)
        finally:
            release(lock)


def _finished(dataset: Dataset, name: str, unfinished: Unfinished) -> ColumnFile:
    """The column, if it was finished and the process killed before the folder was removed; else ConfigError."""
    if not os.path.isdir(unfinished.path) or any(unfinished.has_items(k) for k in range(dataset.num_shards)):
        raise taken(dataset.path, name)
    column = dataset.files.columns[name]
    shutil.rmtree(unfinished.path, ignore_errors=True)
    return column


def give_back(dataset: Dataset, name: str, unfinished: Unfinished) -> None:
    """Let writers continue where `finish` was interrupted, or refused, when some files had their final names."""
    unfinished.require_not_finishing()
    for shard in range(dataset.num_shards if len(unfinished.records()) else 0):
        if not unfinished.has_items(shard):
            with contextlib.suppress(FileNotFoundError):  # another rank was first, or it has none
                os.rename(
                    _own_path(dataset.files.roots, dataset.manifest, items_kind(name), shard), unfinished.items(shard)
                )


class _Finishing:
    def __init__(self, dataset: Dataset, name: str, plan: Plan, unfinished: Unfinished, keep: bool) -> None:
        self.dataset, self.name, self.unfinished, self.keep = dataset, name, unfinished, keep
        self.column = plan.described(dataset.num_shards)
        records = unfinished.records()
        self.records = records[np.lexsort((records["stop"], records["start"]))]
        self.starts: Ints = self.records["start"].astype(np.int64)
        self.boundaries: Ints = np.array(dataset.shard_starts)
        # What no record covers: tokens [start, stop) of the dataset, ascending, none of them empty.
        stops = np.maximum.accumulate(np.append(0, self.records["stop"].astype(np.int64)))
        starts = np.append(self.starts, dataset.num_tokens)
        self.gap_start, self.gap_stop = stops[stops < starts], starts[stops < starts]

    def run(self, partial: bool) -> ColumnFile:
        if not partial:
            self._require_whole()
        shards = range(self.dataset.num_shards)
        files = ItemFiles.absent(len(shards))
        holes = HoleFiles.absent(len(shards), tokens=0, starts=0)
        written = [shard for shard in shards if self._items(shard, files, partial)]
        for shard in written:
            self._holes(shard, holes)
        column = replace(self.column, files=files, holes=holes if holes.tokens else None)
        column.check(self.name, self.dataset.manifest)
        for shard in written:
            source, target = self._source(shard), self._target(items_kind(self.name), shard)
            with named(target, "written"):
                os.rename(source, target)
        for folder in {os.path.dirname(self._target(items_kind(self.name), shard)) for shard in written}:
            sync_directory(folder)
        if not write_file(os.path.join(self.dataset.path, column_file(self.name)), column.dump(), exclusive=True):
            raise taken(self.dataset.path, self.name)
        shutil.rmtree(self.unfinished.path, ignore_errors=True)
        return column

    def _gaps(self, shard: int) -> tuple[Ints, Ints]:
        """Tokens [start, stop) of a shard without a value."""
        first, end = self.boundaries[shard : shard + 2]
        low, high = np.searchsorted(self.gap_stop, first, side="right"), np.searchsorted(self.gap_start, end)
        start, stop = self.gap_start[low:high] - first, self.gap_stop[low:high] - first
        return np.maximum(start, 0), np.minimum(stop, end - first)

    def _starts_in(self, shard: int, start: Ints, stop: Ints) -> int:
        """How many tokens of a shard without a value begin a document, or a shard without documents."""
        if not len(start):
            return 0
        begins = starts_in(self.dataset.files, shard)
        at = np.searchsorted(start, begins, side="right") - 1
        return int(((at >= 0) & (begins < stop[at])).sum())

    def _require_whole(self) -> None:
        """Raise ConfigError for tokens without a value, but for those that begin documents."""
        missing = int((self.gap_stop - self.gap_start).sum())
        starts = sum(self._starts_in(shard, *self._gaps(shard)) for shard in range(self.dataset.num_shards))
        if missing == starts:
            return
        tokens = self.dataset.num_tokens
        tail = int(tokens - self.gap_start[-1]) if self.gap_stop[-1] == tokens else 0
        more = self.gap_stop - self.gap_start > 1
        first = int((self.gap_start + 1)[more][0] if more.any() else self.gap_start[0])
        shard = int(np.searchsorted(self.boundaries, first, side="right")) - 1
        raise ConfigError(
            f"{self.unfinished.path}",
            f"{missing:,} of {tokens:,} tokens without a value ({starts:,} begin documents, and need none), the first "
            f"of them token {first - self.boundaries[shard]:,} of shard {shard}",
            "a value for each token that does not begin a document",
            "write the batches of which has(batch) is False; the last "
            f"{tail:,} tokens, where these fill no window, are read in mode document or with packing; or call "
            f"finish(partial=True), and set outputs.columns.{self.name}.missing",
        )

    def _items(self, shard: int, files: ItemFiles, partial: bool) -> bool:
        """Check the items of a shard, and say what they are. Returns: whether there are any."""
        first, end = self.boundaries[shard : shard + 2].tolist()
        low, high = np.searchsorted(self.starts, [first, end])
        if first == end or (partial and low == high):
            return False
        item, path = self.column.itemsize, self._source(shard)
        size, whole, at = (end - first) * item, xxhash.xxh3_64(), 0
        descriptor = open_own(self.dataset.path, path)
        try:
            with named(path, "written"):
                os.ftruncate(descriptor, size)
            for start, stop, hashes in _ranges(self.records[low:high]):
                begin, until = (start - first) * item, (stop - first) * item
                self._blank(descriptor, path, whole, at, begin)
                known = xxhash.xxh3_64()
                for offset in range(begin, until, _CHUNK):
                    data = read_at(descriptor, offset, min(_CHUNK, until - offset), path)
                    known.update(data)
                    whole.update(memoryview(data)[max(at - offset, 0) :])
                    at = max(at, offset + len(data))
                self._compare(path, start, stop, known.intdigest(), hashes)
            self._blank(descriptor, path, whole, at, size)
            with named(path, "synced"):
                os.fsync(descriptor)
            files.size[shard], files.checksum[shard] = size, whole.hexdigest()
            files.sample[shard] = open_sample(descriptor, size, path)
            files.path[shard] = self._named(items_kind(self.name), shard)
        finally:
            os.close(descriptor)
        return True

    def _compare(self, path: str, start: int, stop: int, found: int, logged: Sequence[int]) -> None:
        twice = len(set(logged)) > 1
        if found not in logged or (twice and not self.keep):
            where = self.dataset.documents_in(start, start + 1).ids.tolist()
            said = f"{len(set(logged))} writers wrote different values" if twice else "others than were logged"
            raise ConfigError(
                f"{path}: tokens [{start:,}, {stop:,}) of the dataset, document {where[0]}",
                said,
                "the values that one writer wrote: ranks of one data-parallel group write the same rows, and one of "
                "them is to write",
                (
                    "column_writer(..., keep=True).finish() takes those that are there"
                    if twice and found in logged
                    else "another writer wrote over a part of them, or the file is corrupt: remove what was written "
                    f"(conceptloader column {self.dataset.path} {self.name} --remove), and write it again"
                ),
            )

    def _blank(self, descriptor: int, path: str, whole: Any, begin: int, until: int) -> None:
        """Bytes that no record covers are 0, also those of a writer that was killed before it logged them."""
        for offset in range(begin, until, _CHUNK):
            data = read_at(descriptor, offset, min(_CHUNK, until - offset), path)
            if np.frombuffer(data, "u1").any():
                data = bytes(len(data))
                with named(path, "written"):
                    os.pwrite(descriptor, data, offset)
            whole.update(data)

    def _holes(self, shard: int, holes: HoleFiles) -> None:
        start, stop = self._gaps(shard)
        if not len(start):
            return
        tokens = int(self.boundaries[shard + 1] - self.boundaries[shard])
        with Spool(self._target(holes_kind(self.name), shard)) as spool:
            for low in range(0, tokens, _CHUNK):
                missing = np.zeros(min(_CHUNK, tokens - low), np.bool_)
                some = slice(np.searchsorted(stop, low, side="right"), np.searchsorted(start, low + len(missing)))
                for begin, end in zip((start[some] - low).tolist(), (stop[some] - low).tolist(), strict=True):
                    missing[max(begin, 0) : end] = True
                spool.write(pack_holes(missing))
            spool.commit()
        holes.size[shard], holes.checksum[shard], holes.sample[shard] = spool.size, spool.checksum, spool.sample
        holes.path[shard] = self._named(holes_kind(self.name), shard)
        holes.tokens += int((stop - start).sum())
        holes.starts += self._starts_in(shard, start, stop)

    def _named(self, kind: str, shard: int) -> str | None:
        """How the column names a file; None for the usual name."""
        own = own_file(self.dataset.manifest, kind, shard)
        return None if own == f"{self.dataset.manifest.shards.path[shard]}.{kind}" else own

    def _target(self, kind: str, shard: int) -> str:
        return _own_path(self.dataset.files.roots, self.dataset.manifest, kind, shard)

    def _source(self, shard: int) -> str:
        """Where the items are: at their final place if this was interrupted."""
        path, target = self.unfinished.items(shard), self._target(items_kind(self.name), shard)
        return path if self.unfinished.has_items(shard) or not os.path.exists(target) else target


def own_file(manifest: Manifest, kind: str, shard: int) -> str:
    """A file of a shard, next to its others, unless these are in the directory of another dataset."""
    prefix = manifest.shards.path[shard]
    elsewhere = os.path.normpath(prefix).startswith(("/", "../"))
    return f"{kind}.{shard:05}" if elsewhere else f"{prefix}.{kind}"


def _own_path(roots: Roots, manifest: Manifest, kind: str, shard: int) -> str:
    path = roots.resolve(own_file(manifest, kind, shard))
    require_own(roots.directory, os.path.dirname(path))
    return path


def _ranges(records: Any) -> Iterator[tuple[int, int, list[int]]]:
    """(start, stop, hashes that were logged) of each range, in order of the starts."""
    for (start, stop), some in groupby(records[["start", "stop", "hash"]].tolist(), lambda record: record[:2]):
        yield start, stop, [found for *_, found in some]


def remove(path: str | os.PathLike[str], name: str, roots: Sequence[str | os.PathLike[str]] | None = None) -> list[str]:
    """Remove a column, or what was written of one that is not finished: NAME.column.json first, then its data.

    Arrays that were left in place stay.

    Returns: the files that it had. Raises: ConfigError if there is nothing of it, or while somebody writes it;
    FormatError, ReadError.
    """
    manifest, allowed = load_manifest(path, roots)
    require_local(allowed.directory)
    unfinished, shards = Unfinished(allowed.directory, name), range(len(manifest.shards))
    head, kinds = os.path.join(allowed.directory, column_file(name)), (items_kind(name), holes_kind(name))
    files = [_own_path(allowed, manifest, kind, shard) for kind in kinds for shard in shards]
    found = [file for file in (head, *files) if os.path.lexists(file)]
    is_written = os.path.isdir(unfinished.path)
    require_own(allowed.directory, unfinished.path)
    if not found and not is_written:
        rule = "NAME.column.json of a column, or NAME.column.unfinished"
        raise ConfigError(
            allowed.directory,
            f"no column {name!r}",
            rule,
            f"correct NAME, or begin it: column_writer(..., name={name!r})",
        )
    with hold(unfinished.lock, _TAKEN) if is_written else contextlib.nullcontext():
        if is_written:
            unfinished.require_no_writer()
        for file in found:
            with named(file, "removed"):
                os.unlink(file)
                if file == head:
                    sync_directory(allowed.directory)
        if is_written:
            with named(unfinished.path, "removed"):
                shutil.rmtree(unfinished.path)
    return found
