"""The files of one dataset: where they are, how large they must be, and reading them."""

import itertools
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.format.read.guard import ManifestGuard
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.jsonfile import load_json
from conceptloader.format.spec.layout import bad
from conceptloader.format.spec.manifest import Manifest, parse_manifest
from conceptloader.format.spec.paths import Roots
from conceptloader.storage.reads import (
    DescriptorCache,
    PinnedFile,
    file_status,
    open_file,
    read_at,
    retrying,
    shared_descriptors,
)
from conceptloader.storage.sample import ask_for_sample, sample_checksum

T = TypeVar("T")
R = TypeVar("R")

_numbers = itertools.count()
_REPLACED = "the file was replaced while it was in use: restore it, verify the dataset, then restart"
CHANGED = (
    "the file was damaged, or replaced by another of its size: restore it, or rebuild the dataset into another "
    "directory; `conceptloader verify --full` finds every such file"
)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file when it was first opened. place: device and inode; sample: None if it was neither recorded nor taken."""

    place: tuple[int, int]
    mtime_ns: int
    sample: str | None


class Files:
    """Positioned reads by (kind, shard). Files are opened when first read, checked, and shared with other datasets'
    in one bounded cache of descriptors.

    guard: looked at when a file of a shard is first opened. check_files: compare the content of files with the
    manifest when they are first opened, as far as it says it.
    """

    remote = False

    def __init__(
        self,
        manifest: Manifest,
        roots: Roots,
        cache: DescriptorCache | None = None,
        guard: ManifestGuard | None = None,
        check_files: bool = True,
    ) -> None:
        self.manifest = manifest
        self.table = manifest.shards
        self.roots = roots
        self.cache = shared_descriptors() if cache is None else cache
        self.check_files = check_files
        self._guard = guard if check_files else None
        self._guarded: set[int] = set()
        self._number = next(_numbers)
        self._paths: dict[tuple[str, int], str] = {}
        self._opened: dict[tuple[str, int], _Opened] = {}

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
        self.check_manifest(shard)
        descriptor = open_file(path)
        try:
            found = file_status(descriptor, path)
            self.check(kind, shard, path, found)
            self._identify(kind, shard, path, descriptor, found)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def check_manifest(self, shard: int) -> None:
        """Raises: FormatError if the dataset was rebuilt since it was opened; looks at it once for each shard."""
        if self._guard is not None and shard not in self._guarded:
            self._guard.check(self.manifest)
            self._guarded.add(shard)

    def _identify(self, kind: str, shard: int, path: str, descriptor: int, found: os.stat_result) -> None:
        """Whether this is the file that the manifest means, and later the one that was opened before.

        A file keeps its size, its time and its content. Its inode number may change, as when a network file system is
        mounted again: then the content decides.
        """
        place, before = (found.st_dev, found.st_ino), self._opened.get((kind, shard))
        if before is not None and found.st_mtime_ns != before.mtime_ns:
            raise bad(
                path,
                f"a modification time of {found.st_mtime_ns} ns",
                f"{before.mtime_ns} as when it was first opened, since no file of a dataset ever changes",
                _REPLACED,
            )
        if before is not None and place == before.place:
            return
        sample = self.table.files[kind].known_sample(shard) if before is None else before.sample
        if before is not None and sample is None:
            expected = "the one that was first opened, and nothing recorded tells whether its content is the same"
            raise bad(path, f"another file (inode {found.st_ino})", expected, _REPLACED)
        if before is not None or self.check_files:
            ask_for_sample(descriptor, found.st_size)
            content = sample_checksum(found.st_size, lambda at, size: read_at(descriptor, at, size, path))
            if sample is not None and content != sample:
                known = "the manifest says" if before is None else "when it was first opened"
                raise bad(path, f"sample checksum {content}", f"{sample} as {known}", CHANGED)
            sample = content
        self._opened[kind, shard] = _Opened(place, found.st_mtime_ns, sample)

    def sample(self, kind: str, shard: int) -> str | None:
        """The sample checksum of a file that was opened."""
        opened = self._opened.get((kind, shard))
        return opened.sample if opened is not None else None

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


def open_local(path: str | os.PathLike[str], roots: Sequence[str | os.PathLike[str]] | None, check: bool) -> Files:
    """The files of the dataset in a directory, for reading over a long time. check: see Files, check_files."""
    file = os.path.join(os.path.abspath(path), fmt.MANIFEST)

    def status() -> Hashable:
        try:
            found = os.stat(file)
        except FileNotFoundError:
            return None  # whoever reads it will say so
        except OSError as error:
            raise ReadError(error.errno, f"{file}: cannot be looked at: {error.strerror}") from error
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    guard = ManifestGuard(file, status, lambda: parse_manifest(load_json(file))) if check else None
    manifest, allowed = load_manifest(path, roots)
    return Files(manifest, allowed, guard=guard, check_files=check)


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
