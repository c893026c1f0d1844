"""The files of one dataset: where they are, how large they must be, and reading them."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.format import layout as fmt
from conceptloader.format.jsonfile import load_json
from conceptloader.format.layout import bad
from conceptloader.format.manifest import Manifest, parse_manifest
from conceptloader.format.paths import Roots
from conceptloader.io import (
    DescriptorCache,
    PinnedFile,
    file_status,
    open_file,
    read_at,
    retrying,
    shared_descriptors,
)

T = TypeVar("T")
R = TypeVar("R")

_numbers = itertools.count()


class Files:
    """Positioned reads by (kind, shard). Files are opened when first read, checked, and shared with other datasets'
    in one bounded cache of descriptors."""

    remote = False

    def __init__(self, manifest: Manifest, roots: Roots, cache: DescriptorCache | None = None) -> None:
        self.table = manifest.shards
        self.roots = roots
        self.cache = shared_descriptors() if cache is None else cache
        self._number = next(_numbers)
        self._paths: dict[tuple[str, int], str] = {}
        self._times: dict[tuple[str, int], int] = {}  # modification time of each file when it was first opened

    def path(self, kind: str, shard: int) -> str:
        known = self._paths.get((kind, shard))
        if known is None:
            known = self._paths[kind, shard] = self.roots.resolve(self.table.file_path(kind, shard))
        return known

    def read(self, kind: str, shard: int, offset: int, size: int) -> bytes:
        """Exactly these bytes. Faults that may pass are retried, each time with the file opened anew.

        Raises: FormatError for a file of another size than the manifest says, ReadError.
        """

        def attempt() -> bytes:
            pinned = self._acquire(kind, shard)
            try:
                return read_at(pinned.descriptor, offset, size, self.path(kind, shard))
            except ReadError:
                self.cache.discard((self._number, kind, shard), pinned)
                raise
            finally:
                self.cache.release(pinned)

        return retrying(attempt)

    def pin(self, kind: str, shard: int) -> PinnedFile:
        """An open, checked file that stays open until `unpin`."""
        return retrying(lambda: self._acquire(kind, shard))

    def _acquire(self, kind: str, shard: int) -> PinnedFile:
        return self.cache.acquire((self._number, kind, shard), lambda: self.open(kind, shard))

    def unpin(self, pinned: PinnedFile) -> None:
        self.cache.release(pinned)

    def open(self, kind: str, shard: int) -> int:
        """A descriptor of one's own, the file checked. Raises: FormatError, ReadError."""
        path = self.path(kind, shard)
        self.roots.check_real(path)
        descriptor = open_file(path)
        try:
            found = file_status(descriptor, path)
            self.check(kind, shard, path, found)
            time = self._times.setdefault((kind, shard), found.st_mtime_ns)
            if found.st_mtime_ns != time:
                raise bad(
                    path,
                    f"a modification time of {found.st_mtime_ns} ns",
                    f"{time} as when it was first opened, since no file of a dataset ever changes",
                    "the file was replaced while it was in use: restore it, verify the dataset, then restart",
                )
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def check(self, kind: str, shard: int, path: str, found: os.stat_result) -> None:
        """Raises: FormatError unless the file is as large, and a foreign one as old, as the manifest says."""
        expected = int(self.table.files[kind].size[shard])
        if found.st_size != expected:
            raise bad(
                path,
                f"{found.st_size} bytes",
                f"{expected} as the manifest says",
                "the file is damaged or incomplete: copy or build it again",
            )
        foreign = self.table.foreign[shard] if self.table.foreign and kind == "stream.bin" else None
        if foreign is not None and found.st_mtime_ns != foreign.mtime_ns:
            raise bad(
                path,
                f"a modification time of {found.st_mtime_ns} ns",
                f"{foreign.mtime_ns} as when it was adopted",
                "the file was changed or copied since: adopt it again, or restore its time if the content is the same",
            )

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """function(item) of each item; where a read waits for a network, of all at once."""
        return map(function, items)

    def close(self) -> None:
        """Close this dataset's idle descriptors."""
        self.cache.drop(lambda key: isinstance(key, tuple) and key[0] == self._number)


def load_manifest(
    path: str | os.PathLike[str], roots: Sequence[str | os.PathLike[str]] | None
) -> tuple[Manifest, Roots]:
    """Read and check the manifest of the dataset directory `path`; its paths must stay below the roots."""
    if "://" in os.fspath(path):
        raise ConfigError(f"{path}: found a URL, expected a local directory; only open_dataset and loaders read others")
    directory = os.path.abspath(path)
    if not os.path.isdir(directory):
        raise ConfigError(f"{path}: found no directory, expected the directory of a dataset; check the path")
    file = os.path.join(directory, fmt.MANIFEST)
    if not os.path.exists(file):
        if os.path.exists(os.path.join(directory, fmt.BUILD)):
            raise FormatError(
                f"{directory}: found a build without {fmt.MANIFEST}, expected a complete dataset; "
                "continue the build and finalize it"
            )
        raise FormatError(f"{directory}: found no {fmt.MANIFEST}, expected a dataset; check the path")
    allowed = Roots(directory, roots)
    manifest = parse_manifest(load_json(file))
    check_paths(manifest, allowed, file)
    return manifest, allowed


def check_paths(manifest: Manifest, allowed: Roots, file: str) -> None:
    """Refuse paths of a manifest, read from `file`, that leave the roots. Raises: FormatError."""
    table = manifest.shards
    allowed.check(table.path, f"{file}: shards: path")
    for kind, column in table.files.items():
        if column.path is not None:
            allowed.check(filter(None, column.path), f"{file}: shards: files: {kind}: path")
    if table.foreign is not None:
        allowed.check((f.index for f in table.foreign if f and f.index), f"{file}: shards: foreign: index")
    allowed.check((t.vocabulary.path for t in manifest.tracks.values() if t.vocabulary), f"{file}: tracks: vocabulary")
