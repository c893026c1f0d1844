"""Datasets in object stores: the same manifest and the same files, read by ranges of objects."""

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import NoReturn, TypeVar
from urllib.parse import unquote, urlsplit

from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.format.read.files import CHANGED, Files, check_paths, open_local
from conceptloader.format.read.guard import ManifestGuard
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.jsonfile import load_sealed
from conceptloader.format.spec.layout import bad
from conceptloader.format.spec.manifest import Manifest, parse_manifest
from conceptloader.format.spec.paths import Roots
from conceptloader.storage.reads import PinnedFile, retrying
from conceptloader.storage.sample import sample_checksum, sample_places
from conceptloader.storage.settings import disk_reader, memory_reader, settings
from conceptloader.storage.stores import is_url, object_size, object_version, read_range
from conceptloader.storage.threads import shared_threads
from conceptloader.storage.urls import below, normal, parent

T = TypeVar("T")
R = TypeVar("R")

_MANIFEST_LIMIT = 1 << 30
_HOLE = 1 << 16  # wanted ranges this far apart are read together
_LARGEST = 1 << 23  # of what is put together
_STREAM = "stream.bin"


def open_files(
    path: str | os.PathLike[str], roots: Sequence[str | os.PathLike[str]] | None, check_files: bool
) -> Files:
    """The files of a dataset in a directory or at a URL, and its manifest. check_files: see Files."""
    path = _local(path)
    if not is_url(path):
        return open_local(path, roots, check_files)
    remote = RemoteRoots(os.fspath(path), roots)
    file = f"{remote.directory}/{fmt.MANIFEST}"

    def load() -> Manifest:
        return parse_manifest(load_sealed(remote.read_whole(file, _MANIFEST_LIMIT), file))

    guard = (
        ManifestGuard(file, lambda: retrying(lambda: object_version(file, remote.allows)), load)
        if check_files
        else None
    )
    manifest = load()
    check_paths(manifest, remote, file)
    return RemoteFiles(manifest, remote, guard, check_files)


def _local(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """A URL of a local directory as its path, so that it is checked and read like one."""
    parts = urlsplit(path) if isinstance(path, str) and path.startswith(("file://", "local://")) else None
    if parts is None:
        return path
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(
            f"{path}: found the host {parts.netloc!r} of a local directory, expected none; write its path"
        )
    return unquote(parts.path)


class RemoteRoots(Roots):
    """Roots that are URLs; by default the parent of the dataset's URL, in its own host or bucket."""

    def __init__(self, url: str, roots: Sequence[str | os.PathLike[str]] | None) -> None:
        self.directory = normal(url)
        if isinstance(roots, (str, os.PathLike)):
            raise ConfigError(f"roots: found the single path {roots!r}, expected a list of URLs; write [...]")
        # Local roots of a configuration are for its local datasets.
        self.given = None if roots is None else [normal(os.fspath(root)) for root in roots if is_url(root)]
        chosen = [parent(self.directory)] if self.given is None else [self.directory, *self.given]
        self.roots = list(dict.fromkeys(chosen))

    def resolve(self, path: str) -> str:
        return normal(path if is_url(path) else f"{self.directory}/{path}")

    def check(self, paths: Iterable[str], where: str) -> None:
        """See Roots, which looks at directories only: here a name may hold an escaped slash."""
        paths = list(paths)
        super().check(paths, where)
        for path in paths:
            if ("%" in path or "\\" in path) and not self.allows(self.resolve(path)):
                raise self._outside(where, path)

    def allows(self, url: str) -> bool:
        """Whether a file may be read there, by its name or since a server redirects to it."""
        return any(below(url, root) for root in self.roots)

    def check_real(self, path: str) -> None:
        """There are no symbolic links; redirects are checked as they come."""

    def read_whole(self, path: str, limit: int) -> bytes:
        """A small object. Raises: ReadError, FormatError if it is larger than `limit` bytes."""
        size = retrying(lambda: object_size(path, self.allows))
        if size > limit:
            raise FormatError(f"{path}: found {size} bytes, expected at most {limit}; this is not such a file")
        return retrying(lambda: self._whole(path, size)) if size else b""

    def _whole(self, path: str, size: int) -> bytes:
        data = read_range(path, 0, size, self.allows).data
        if len(data) != size:
            raise ReadError(errno.EIO, f"{path}: found {len(data)} bytes, expected {size}")
        return data


class RemoteFiles(Files):
    """Reads by requests of ranges, with retries. Everything but tokens goes through a cache of blocks in memory;
    everything through one on the disk, if the user wants that.

    Objects are checked like files: by their size in the manifest, and by a version that must not change.
    """

    remote = True

    def __init__(
        self, manifest: Manifest, roots: RemoteRoots, guard: ManifestGuard | None = None, check_files: bool = True
    ) -> None:
        super().__init__(manifest, roots, guard=guard, check_files=check_files)
        self._remote_roots = roots
        self._settings = settings()
        self._versions: dict[str, str | None] = {}
        self._asking: dict[str, threading.Lock] = {}
        self._process = os.getpid()
        self._staged: dict[int, list[_Staged]] = {}
        self._checked: set[tuple[str, int]] = set()
        self._checking: dict[tuple[str, int], threading.Lock] = {}
        self._lock = threading.Lock()

    def read(self, kind: str, shard: int, offset: int, size: int) -> bytes:
        """See Files."""
        if not size:
            return b""
        if self._process != os.getpid():
            raise ConfigError(
                f"{self.roots.directory}: opened in another process, and clients of object stores do not survive a "
                "fork; use threads (num_workers=0), or multiprocessing_context='spawn'"
            )
        if kind == _STREAM:
            for staged in self._staged.get(shard, ()):
                if staged.start <= offset and offset + size <= staged.stop:
                    return staged.data.result()[offset - staged.start : offset - staged.start + size]
        return self._read(kind, shard, offset, size)

    def _read(self, kind: str, shard: int, offset: int, size: int) -> bytes:
        url, total = self.path(kind, shard), int(self.table.files[kind].size[shard])
        if self.check_files and (kind, shard) not in self._checked:
            self._check_content(kind, shard, url, total)

        def fetch(start: int, count: int) -> bytes:
            return retrying(lambda: self._attempt(url, total, start, count))

        if self._settings.cache_dir is not None:
            name = f"{url} {total} {self._version(url, total)}"
            reader = disk_reader(self._settings.cache_dir, self._settings.cache_bytes)
            return reader.read(name, total, offset, size, fetch)
        if kind != _STREAM:
            return memory_reader(self._settings.memory_bytes).read(f"{self._number} {url}", total, offset, size, fetch)
        return fetch(offset, size)

    def _check_content(self, kind: str, shard: int, url: str, total: int) -> None:
        """Whether an object is the one that the manifest means, from the store itself, not from a cache.

        Later its version tells: every answer of a store carries it.
        """
        with self._checking.setdefault((kind, shard), threading.Lock()):
            if (kind, shard) in self._checked:
                return
            self.check_manifest(shard)
            expected = self.table.files[kind].known_sample(shard)
            if expected is not None:

                def read(place: tuple[int, int]) -> bytes:
                    return retrying(lambda: self._attempt(url, total, *place))

                places = sample_places(total)
                # A pool of its own: its tasks wait for nothing but the store.
                pool = shared_threads("conceptloader samples", self._settings.connections)
                parts = dict(zip(places, pool.map(read, places), strict=True))
                found = sample_checksum(total, lambda offset, size: parts[offset, size])
                if found != expected:
                    raise bad(url, f"sample checksum {found}", f"{expected} as the manifest says", CHANGED)
            self._checked.add((kind, shard))

    def _version(self, url: str, total: int) -> str | None:
        """The version of an object, asked for once: what the disk has of another version is not used."""
        if url not in self._versions:
            with self._asking.setdefault(url, threading.Lock()):
                if url not in self._versions:
                    retrying(lambda: self._attempt(url, total, 0, 1))
        return self._versions[url]

    def _attempt(self, url: str, total: int, offset: int, size: int) -> bytes:
        try:
            part = read_range(url, offset, size, self._remote_roots.allows)
        except ReadError as error:
            if error.errno == errno.EIO:  # a range behind the end of an object is an error like any other
                self._check_size(url, object_size(url, self._remote_roots.allows), total)
            raise
        self._check_size(url, part.size, total)
        if len(part.data) != size:
            raise ReadError(errno.EIO, f"{url}: found {len(part.data)} bytes at offset {offset}, expected {size}")
        known = self._versions.setdefault(url, part.version)
        if part.version != known:
            raise bad(
                url, f"version {part.version}", f"{known} as when it was first read",
                "the object was replaced while it was in use: restore it, then restart",
            )  # fmt: skip
        return part.data

    def _check_size(self, url: str, found: int, expected: int) -> None:
        if found != expected:
            rule = f"{expected} as the manifest says"
            raise bad(url, f"{found} bytes", rule, "the object is damaged or incomplete: upload it again")

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Many reads wait at the same time."""
        return shared_threads("conceptloader rows", self._settings.connections).map(function, items)

    @contextmanager
    def staged(self, ranges: Iterable[tuple[int, int, int]]) -> Iterator[None]:
        """Read (shard, first byte, end) of token files ahead, neighbours together; reads in the block wait for them."""
        pool = shared_threads("conceptloader requests", self._settings.connections)
        mine: list[tuple[int, _Staged]] = []
        for shard, start, stop in _merged(ranges):
            mine.append((shard, _Staged(start, stop, pool.submit(self._read, _STREAM, shard, start, stop - start))))
        with self._lock:
            for shard, staged in mine:
                self._staged[shard] = [*self._staged.get(shard, ()), staged]
        try:
            yield
        finally:
            with self._lock:
                for shard, staged in mine:
                    self._staged[shard] = [other for other in self._staged[shard] if other is not staged]

    def pin(self, kind: str, shard: int) -> PinnedFile:
        self._no_descriptor()

    def open(self, kind: str, shard: int) -> int:
        self._no_descriptor()

    def _no_descriptor(self) -> NoReturn:
        raise ConfigError(
            f"{self.roots.directory}: found a URL, expected a local directory for the compiled reader; "
            "set loader.engine: reference"
        )

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def reading_ahead(ranges: Iterable[tuple[Ranges, int, int]]) -> Iterator[None]:
    """Begin to read the tokens [start, stop) of remote datasets; reads in the block wait for it."""
    wanted: dict[int, tuple[RemoteFiles, list[tuple[int, int, int]]]] = {}
    for dataset, start, stop in ranges:
        if isinstance(dataset.files, RemoteFiles):
            table, layouts = dataset.manifest.shards, dataset.manifest.layouts
            _, places = wanted.setdefault(id(dataset), (dataset.files, []))
            for shard, first, end, _ in dataset.parts(start, stop):
                size = layouts[table.layout[shard]].itemsize
                # A dense track looks one token further on both sides.
                low, high = max(0, first - 1), min(end + 1, int(table.tokens[shard]))
                places.append((shard, int(table.offset[shard]) + low * size, int(table.offset[shard]) + high * size))
    with ExitStack() as stack:
        for files, places in wanted.values():
            stack.enter_context(files.staged(places))
        yield


class _Staged:
    """Bytes [start, stop) of a token file that are on their way."""

    __slots__ = ("data", "start", "stop")

    def __init__(self, start: int, stop: int, data: "Future[bytes]") -> None:
        self.start, self.stop, self.data = start, stop, data


def _merged(ranges: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Ranges in order; those that overlap or lie near each other become one, up to a size."""
    result: list[tuple[int, int, int]] = []
    for shard, start, stop in sorted(ranges):
        if result and result[-1][0] == shard and start <= result[-1][2] + _HOLE:
            before = result[-1][1]
            if max(stop, result[-1][2]) - before <= _LARGEST:
                result[-1] = (shard, before, max(stop, result[-1][2]))
                continue
        result.append((shard, start, stop))
    return result
