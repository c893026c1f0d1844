"""Whether a dataset is what it was when it was opened, and those whose files it refers to what they were before."""

import errno
from collections.abc import Callable, Hashable, Iterator

from conceptloader.errors import ReadError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.layout import bad
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.paths import Roots

_REBUILT = (
    "the dataset was rebuilt or replaced while it was in use: restore it, or build into another directory; restart"
)
_LEFT_BEHIND = "that dataset was rebuilt since this one was made of it: restore it, or join, annotate or convert anew"


class ManifestGuard:
    """Made before the manifest `file` is read, lest one be missed that replaces it meanwhile.

    status: of a manifest: what changes when it is written again, a modification time or an ETag; cheap. load: reads
    one; called when the status has changed, since the same dataset may be restored or copied into place.
    """

    def __init__(self, file: str, status: Callable[[str], Hashable], load: Callable[[str], Manifest]) -> None:
        self._file, self._status, self._load = file, status, load
        self._known = {file: self._look(file)}
        self._folders = dict[str, str]()  # of manifests of others: where this one says that they are

    def begin(self, manifest: Manifest, roots: Roots) -> None:
        """What was read from `file`. Raises: FormatError, ReadError for the datasets that it refers to; one of which
        only the files are left cannot be asked."""
        self._manifest = manifest
        for folder in _folders(manifest):
            path = roots.resolve(f"{folder}/{fmt.MANIFEST}")
            self._folders[path], self._known[path] = folder, self._look(path)
            if self._known[path] is not None:
                self._compare(path)

    def look(self) -> None:
        """Raises: FormatError unless all manifests say what they said, ReadError."""
        for path, known in list(self._known.items()):
            found = self._look(path)
            if found != known:
                self._compare(path)
                self._known[path] = found

    def _look(self, path: str) -> Hashable:
        """None if there is none, which whoever reads it will say."""
        try:
            return self._status(path)
        except ReadError as error:
            if error.errno != errno.ENOENT:
                raise
            return None

    def _compare(self, path: str) -> None:
        found = self._load(path)
        if path == self._file:
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
        if any(column.path):
            places |= {path for path, checksum in zip(column.path, column.checksum, strict=True) if path and checksum}
    return {place.rpartition("/")[0] for place in places} - {""}
