"""Which files a manifest may refer to: those below the roots that the caller allows, and nothing else."""

import contextlib
import errno
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from conceptloader.base.lazy import lazy
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.format.spec.jsonfile import LIMIT, JsonFile, load_json, load_sealed
from conceptloader.format.spec.layout import DAMAGED, bad
from conceptloader.storage.objects import open_objects
from conceptloader.storage.reads import named, open_file, read_file, retrying
from conceptloader.storage.urls import below, is_url, normal, parent

_END = 256  # bytes
Given = Sequence[str | os.PathLike[str]] | None
"""Roots as callers name them; None for the default."""


class Roots:
    """Directories that hold all files of a dataset.

    By default this is the parent of the dataset's directory: a dataset may refer to its siblings (concatenated, adopted
    files), everything else has to be allowed by name. A manifest is data and cannot widen this itself.
    """

    def __init__(self, directory: str, roots: Given) -> None:
        self._choose(os.path.abspath(directory), os.path.dirname, roots, os.path.abspath)
        self._met = {self.directory}  # directories that were below the roots, links followed

    @lazy
    def _real(self) -> tuple[str, ...]:
        """The roots, links followed, once: before the first file is opened. Many a dataset is opened and not read."""
        return tuple(os.path.join(os.path.realpath(root), "") for root in (*self.roots, self.directory))

    def _choose(self, directory: str, above: Callable[[str], str], roots: Given, form: Callable[[Any], str]) -> None:
        """form: of a root that is given, "" to omit it. Raises: ConfigError."""
        if isinstance(roots, (str, os.PathLike)):
            raise ConfigError("roots", f"the single path {roots!r}", "a list of them", f"pass roots=[{roots!r}]")
        self.directory, self._below = directory, directory.rstrip("/") + "/"
        self.given = None if roots is None else [found for root in roots if (found := form(root))]
        self.roots = [above(directory)] if self.given is None else list(dict.fromkeys([directory, *self.given]))

    def resolve(self, path: str) -> str:
        """The absolute form of a path in the manifest, which is relative to the dataset's directory."""
        plain = "/" not in path and path not in ("", ".", "..")  # as nearly all are
        return os.path.normpath(os.path.join(self.directory, path)) if not plain else f"{self._below}{path}"

    def check(self, paths: Iterable[str], where: str) -> None:
        """Refuse paths that leave the roots, before anything is opened. Looks at each directory once."""
        seen = {""}  # the dataset's own directory
        for path in paths:
            name = path.rpartition("/")[2]
            if not name or name in (".", "..") or not _possible(path):
                raise bad(where, repr(path), "the path of a file", DAMAGED)
            directory = path[: -len(name)]
            if directory in seen:
                continue
            seen.add(directory)
            if not self.allows(self.resolve(directory)):
                raise self._outside(where, path)

    def allows(self, directory: str) -> bool:
        """Whether files of a resolved directory may be read, links aside."""
        return os.path.join(directory, "").startswith(tuple(os.path.join(root, "") for root in self.roots))

    def check_real(self, path: str) -> str:
        """Refuse what is outside the roots once symbolic links are followed. Returns: where it is then.

        Raises: FormatError; ReadError if that cannot be known, since a link that cannot be read is not followed.
        """
        with named(path, "looked at"):
            try:
                real = os.path.realpath(path, strict=True)
            except FileNotFoundError:
                real = os.path.realpath(path)  # whoever opens it will say so
        if not os.path.join(real, "").startswith(self._real):
            raise self._outside(path, real)
        return real

    def open(self, path: str) -> int:
        """A read-only descriptor of a file below the roots, links followed.

        The directory is looked at when it is first met, the file only if it is a link: a look at each part of a path,
        for each file and on each rank, is what a file system's server feels. What is swapped in later is not read,
        since the descriptor itself says where it leads.

        Raises: FormatError, ReadError.
        """
        directory, real_roots = os.path.dirname(path), self._real  # what they are before a file is opened
        if directory not in self._met:
            self.check_real(directory)
            self._met.add(directory)
        try:
            descriptor = open_file(path, os.O_NOFOLLOW)
        except ReadError as error:
            if error.errno != errno.ELOOP:
                raise
            descriptor = open_file(self.check_real(path), os.O_NOFOLLOW)
        found = f"/proc/self/fd/{descriptor}"
        try:
            with contextlib.suppress(OSError):  # there is no /proc
                found = os.readlink(found)
            if not found.startswith(real_roots):
                real = self.check_real(path)  # it may be a file system that spells names in its own way
                with named(path, "looked at"):
                    if not os.path.samestat(os.fstat(descriptor), os.stat(real)):
                        raise self._outside(path, found)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def load(self, path: str) -> JsonFile:
        """A checksummed JSON file, its path resolved. Raises: FormatError, ReadError."""
        return load_json(path)

    def status(self, path: str) -> Hashable:
        """What changes when a file is written again, None if there is none. Raises: ReadError."""
        with named(path, "looked at"):
            try:
                found = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def read_whole(self, path: str, limit: int) -> bytes:
        """A small file, its path resolved. Raises: FormatError if it is outside or larger than `limit`, ReadError."""
        return read_file(path, limit, self.open)

    def _outside(self, where: str, found: str) -> Exception:
        remedy = (
            "if you trust this dataset, allow the directory: --root DIR of a command, roots=[...] in Python, "
            "allowed_roots: in a configuration"
        )
        return bad(where, repr(found), f"a file below {', '.join(self.roots)}", remedy)


def with_default(path: str, roots: Sequence[str] | None) -> list[str] | None:
    """The roots of a dataset where those that are given are to be added to the default."""
    if roots is None:
        return None
    return [parent(normal(path)) if is_url(path) else os.path.dirname(os.path.abspath(path)), *roots]


class UrlRoots(Roots):
    """Roots that are URLs; by default the parent of the dataset's URL, in its own host or bucket.

    objects: their source. check: see there.
    """

    def __init__(self, url: str, roots: Given, check: bool = True) -> None:
        # Local roots of a configuration are for its local datasets.
        self._choose(normal(url), parent, roots, lambda root: normal(root) if is_url(root) else "")
        self.objects = open_objects(self.directory, check)

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
        """Whether a file may be read there."""
        return any(below(url, root) for root in self.roots)

    def check_real(self, path: str) -> str:
        """There are no symbolic links; redirects of a server are its own business."""
        return path

    def load(self, path: str) -> JsonFile:
        """See Roots."""
        return load_sealed(self.read_whole(path, LIMIT), path)

    def status(self, path: str) -> Hashable:
        """See Roots: size and version of the object; its end where the store says none, where a checksum is."""

        def status() -> Hashable:
            found = self.objects.get(path, 0, 0)
            end = max(0, found.size - _END)
            return found.size, found.version or (found.size and self.objects.get(path, end, _END).data)

        try:
            return retrying(status)
        except ReadError as error:
            if error.errno != errno.ENOENT:
                raise
            return None

    def read_whole(self, path: str, limit: int) -> bytes:
        """A small object. Raises: ReadError, FormatError if it is larger than `limit` bytes."""

        def whole() -> bytes:
            size = self.objects.get(path, 0, 0).size
            if size > limit:
                raise FormatError(
                    path,
                    f"{size} bytes",
                    f"at most {limit}",
                    "pass the path of a file of conceptloader: this is another kind",
                )
            data = self.objects.get(path, 0, size).data
            if len(data) != size:
                raise ReadError(
                    path,
                    f"{len(data)} bytes",
                    str(size),
                    errno=errno.EIO,
                    fix=f"copy {path} again, then run `conceptloader verify DATASET`",
                )
            return data

        return retrying(whole)


def _possible(path: str) -> bool:
    """Whether a file can be called so: JSON knows characters that no path has."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False
