"""The files of one dataset: where they are, what they must be, and reading them from wherever that is."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence

from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.format.read.columns import Columns
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec import viewfile
from conceptloader.format.spec.codecs import Codec, ConceptsCodec, NumpyCodec, get_codec
from conceptloader.format.spec.jsonfile import JsonFile
from conceptloader.format.spec.layout import DAMAGED, bad
from conceptloader.format.spec.manifest import Manifest, parse_manifest
from conceptloader.format.spec.paths import Roots, UrlRoots
from conceptloader.format.spec.shardtable import ShardTable
from conceptloader.format.spec.viewfile import RUN, RUNS, Runs, ViewManifest
from conceptloader.storage.objects import Objects
from conceptloader.storage.reads import named
from conceptloader.storage.source import Expected, LocalFiles
from conceptloader.storage.urls import is_url

_REBUILT = (
    "the dataset was rebuilt or replaced while it was in use: restore it and restart, or run `conceptloader build` "
    "with another --out"
)
_LEFT_BEHIND = (
    "that dataset was rebuilt after this one was made from it: restore it, or run conceptloader.concat or annotate "
    "again"
)


class ManifestGuard:
    """Whether a dataset is what it was when it was opened, and those whose files it refers to what they were before.

    Made before the manifest is read, so that no replacement in the meantime is missed. One whose status has changed is
    read again, since the same dataset may be restored or copied into place.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots, self._file = roots, roots.resolve(fmt.MANIFEST)
        self._known = {self._file: roots.status(self._file)}
        self._folders = dict[str, str]()  # of manifests of others: where this one says that they are

    def begin(self, manifest: Manifest) -> None:
        """What was read.

        Raises: FormatError, ReadError for the datasets that it refers to; one of which only the files are left cannot
        be asked.
        """
        self._manifest = manifest
        for folder in _folders(manifest):
            path = self._roots.resolve(f"{folder}/{fmt.MANIFEST}")
            self._folders[path], self._known[path] = folder, self._roots.status(path)
            if self._known[path] is not None:
                self._compare(path)

    def look(self) -> None:
        """Raises: FormatError unless all manifests say what they said, ReadError."""
        for path, known in list(self._known.items()):
            found = self._roots.status(path)
            if found != known:
                self._compare(path)
                self._known[path] = found

    def _compare(self, path: str) -> None:
        found = parse_manifest(self._roots.load(path))
        if path == self._file:
            if found.dump() != self._manifest.dump():  # another form of it says the same
                require_same(path, found.identity, self._manifest.identity)
            return
        folder, theirs = self._folders[path], dict(_checksums(found))
        for name, checksum in _checksums(self._manifest):
            place, _, own = name.rpartition("/")
            other = theirs.get(own) if place == folder else None
            if None not in (checksum, other) and checksum != other:
                raise bad(path, f"checksum {other} of {own}", f"{checksum} as {self._file} says", _LEFT_BEHIND)


def require_same(where: str, found: str, identity: str) -> None:
    """Raises: FormatError unless the manifest that was found is the one of this identity."""
    if found != identity:
        raise bad(where, f"a manifest of other content ({found})", f"{identity} as it was opened", _REBUILT)


def _checksums(manifest: Manifest) -> Iterator[tuple[str, str | None]]:
    """(path as the manifest has it, checksum if it has one) of each file."""
    table = manifest.shards
    for kind, column in table.files.items():
        for prefix, path, checksum in zip(table.path, column.path, column.checksum, strict=True):
            yield path or f"{prefix}.{kind}", checksum


def _folders(manifest: Manifest) -> set[str]:
    """Directories of other datasets in which files are, as the manifest has them; not those of other libraries."""
    table = manifest.shards
    places = set(table.path)
    for column in table.files.values():
        places |= {path for path, checksum in zip(column.path, column.checksum, strict=True) if path and checksum}
    return {place.rpartition("/")[0] for place in places} - {""}


class Files:
    """Reads by (kind, shard). Files are checked when they are first read.

    kinds: what there is of each kind of file, columns that were asked for included. columns: by name. guard: asked when
    a file was opened; one that is opened later is compared with it. local, remote: the source, as what it is: compiled
    code reads local files by itself, and asks for objects. require_unchanged: raises FormatError unless the manifest is
    the one that was read, and so the files that were opened before this the ones that it means; ReadError.
    """

    def __init__(
        self,
        manifest: Manifest,
        roots: Roots,
        source: LocalFiles | Objects | None = None,
        guard: ManifestGuard | None = None,
    ) -> None:
        self.manifest = manifest
        self.table = manifest.shards
        self.kinds = dict(self.table.files)
        self.columns = Columns(manifest, roots, self.kinds)
        self.roots = roots
        self.source = source or LocalFiles()
        self.local = self.source if isinstance(self.source, LocalFiles) else None
        self.remote = self.source if isinstance(self.source, Objects) else None
        self.require_unchanged: Callable[[], object] = bool if guard is None else guard.look
        if guard is not None:
            guard.begin(manifest)
        self._expected: dict[tuple[str, int], Expected] = {}
        self._codecs: dict[str, Codec] = {}

    def path(self, kind: str, shard: int) -> str:
        return self.expected(kind, shard).path

    def bad(self, kind: str, shard: int, found: str, expected: str) -> FormatError:
        """For a file whose content cannot be right."""
        return bad(self.path(kind, shard), found, expected, DAMAGED)

    def codec(self, track: str) -> Codec:
        """The codec of a track. Raises: ConfigError for its parameters, FormatError for one that is not known."""
        if track not in self._codecs:
            entry = self.manifest.tracks[track]
            where = f"{self.roots.resolve(fmt.MANIFEST)}: track {track!r}"
            codec = get_codec(entry.codec, entry.parameters, where)
            codec = ConceptsCodec(entry.parameters, entry.num_ids) if isinstance(codec, ConceptsCodec) else codec
            self._codecs[track] = codec
        return self._codecs[track]

    def concepts(self, track: str) -> ConceptsCodec:
        """The codec of a track of concepts."""
        codec = self.codec(track)
        assert isinstance(codec, ConceptsCodec)
        return codec

    def item(self, track: str) -> int:
        """Bytes of a concept, or a number, in a record."""
        codec = self.codec(track)
        assert isinstance(codec, (ConceptsCodec, NumpyCodec))
        return codec.item

    def expected(self, kind: str, shard: int) -> Expected:
        """What the manifest says of a file."""
        known = self._expected.get((kind, shard))
        if known is None:
            known = self._expected[kind, shard] = self._described(kind, shard)
        return known

    def _described(self, kind: str, shard: int) -> Expected:
        column, stream = self.kinds[kind], kind == "stream.bin"
        name, size = column.path[shard] or f"{self.table.path[shard]}.{kind}", int(column.size[shard])
        path = self.roots.resolve(name)
        foreign = self.table.foreign[shard] if stream else None
        sample = column.sample[shard]
        assert sample is not None, path  # as of every file that is there
        return Expected(
            path,
            size,
            sample,
            foreign.mtime_ns or None if foreign is not None else None,
            stream,
            self.require_unchanged,
            self.roots.open,
        )

    def read(self, kind: str, shard: int, offset: int, size: int) -> bytes:
        """Exactly these bytes. Raises: FormatError for a file that is not the one the manifest means, ReadError."""
        return next(self.source.ranges([(self.expected(kind, shard), offset, size)]))

    def look(self) -> None:
        """Whether all files are there and as large as the manifest says, without opening them.

        Those of a store are not asked for. Raises: FormatError, ReadError.
        """
        if self.local is None:
            return
        for kind, column in list(self.kinds.items()):
            for shard in [k for k, size in enumerate(column.size.tolist()) if size >= 0]:
                self._look_at(self._described(kind, shard))  # not kept: most of what many small datasets would hold
        for track in self.manifest.tracks.values():
            for entry in track.vocabulary.files if track.vocabulary else ():
                self._look_at(Expected(self.roots.resolve(entry.path), entry.size, sample=""))

    def _look_at(self, file: Expected) -> None:
        try:
            found = os.stat(file.path)
        except OSError:
            with named(file.path, "looked at"):
                raise
        file.check(found)

    def close(self) -> None:
        """Let go of what is open."""
        if self.local is not None:
            self.local.close()


class FoundView(FormatError):
    """There is a view where a dataset with files of its own was expected.

    source: of its source, checked to be below the roots.
    """

    def __init__(self, head: JsonFile, roots: Roots) -> None:
        self.view, self.roots = head.parse(ViewManifest, viewfile.FORMAT, viewfile.VERSION), roots
        self.source = roots.resolve(self.view.source.path)
        super().__init__(
            f"{roots.directory}: found a view of {self.source}, expected a dataset with files of its own; do this with "
            "that one, then write the subset again"
        )
        manifest = f"{self.view.source.path}/{fmt.MANIFEST}"
        roots.check([manifest], f"{head.where}: source.path")
        roots.check_real(roots.resolve(manifest))

    def runs(self, source_tokens: int) -> Runs:
        """Raises: FormatError, ReadError."""
        path = self.roots.resolve(RUNS)
        data = self.roots.read_whole(path, self.view.num_documents * RUN.itemsize)
        return self.view.load_runs(data, path, source_tokens)


class Found:
    """A dataset in a directory or at a URL, its manifest read, for reading over a long time.

    check: compare the content of files with the manifest, and the manifest with what it was.
    """

    def __init__(
        self, path: str | os.PathLike[str], roots: Sequence[str | os.PathLike[str]] | None, check: bool
    ) -> None:
        if isinstance(path, str) and path.startswith(("file://", "local://")):
            raise ConfigError(path, "a URL of a local directory", "its path", f"pass {path.partition('://')[2]}")
        self.roots = UrlRoots(os.fspath(path), roots, check) if is_url(path) else Roots(os.fspath(path), roots)
        self.check, self._guard = check, ManifestGuard(self.roots) if check else None
        self.head = _read_head(self.roots)

    def files(self, table: ShardTable | None = None) -> Files:
        """Its files. table: see parse_manifest. Raises: FoundView, FormatError, ReadError."""
        source = self.roots.objects if isinstance(self.roots, UrlRoots) else LocalFiles(self.check)
        return Files(_parsed(self.head, self.roots, table), self.roots, source, self._guard)


_MAKE_ONE = (
    "check the path, or make a dataset: `conceptloader build` of text (.jsonl, .parquet, ...), `conceptloader adopt` "
    "of token files (.bin and .idx, .ds, .npy)"
)


def load_manifest(
    path: str | os.PathLike[str], roots: Sequence[str | os.PathLike[str]] | None
) -> tuple[Manifest, Roots]:
    """Read and check the manifest of the dataset directory `path`; its paths must stay below the roots."""
    if "://" in os.fspath(path):
        raise ConfigError(path, "a URL", "a local directory", "copy it here, or use conceptloader.open_dataset")
    allowed = Roots(os.fspath(path), roots)
    return _parsed(_read_head(allowed), allowed), allowed


def _read_head(allowed: Roots) -> JsonFile:
    file = allowed.resolve(fmt.MANIFEST)
    try:
        return allowed.load(file)
    except ReadError as error:
        again = not isinstance(allowed, UrlRoots) and _explain(allowed.directory, file, error)
        if not again:
            raise
        return _read_head(allowed)


def _parsed(head: JsonFile, allowed: Roots, table: ShardTable | None = None) -> Manifest:
    if head.value.get("format") == viewfile.FORMAT:
        raise FoundView(head, allowed)
    manifest = parse_manifest(head, table)
    _check_paths(manifest, allowed, head.where)
    return manifest


def _explain(directory: str, file: str, error: ReadError) -> bool:
    """Why the manifest of a local dataset cannot be read. Returns: whether it has just been completed."""
    if not os.path.isdir(directory):
        found = "a file" if os.path.exists(directory) else "no directory"
        raise ConfigError(directory, found, "the directory of a dataset", _MAKE_ONE) from None
    if os.path.exists(file):
        return error.errno == errno.ENOENT
    if os.path.exists(os.path.join(directory, fmt.BUILD)):
        raise FormatError(
            directory,
            f"a build without {fmt.MANIFEST}",
            "a complete dataset",
            "run the same `conceptloader build` again, or conceptloader.writing.finalize in Python",
        ) from None
    raise FormatError(directory, f"no {fmt.MANIFEST}", "a dataset", _MAKE_ONE) from None


def _check_paths(manifest: Manifest, allowed: Roots, file: str) -> None:
    """Refuse paths of a manifest, read from `file`, that leave the roots. Raises: FormatError."""
    table = manifest.shards
    allowed.check(table.path, f"{file}: shards.path")
    for kind, column in table.files.items():
        allowed.check(filter(None, column.path), f"{file}: shards.files.{kind}.path")
    indices = (one.index for one in table.foreign if one and one.index)
    allowed.check(indices, f"{file}: shards.foreign.index")
    vocabularies = [t.vocabulary for t in manifest.tracks.values() if t.vocabulary]
    allowed.check((path for entry in vocabularies for path in entry.paths), f"{file}: tracks.vocabulary")
