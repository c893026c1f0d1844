"""Which files a manifest may refer to: those below the roots that the caller allows, and nothing else."""

import os
from collections.abc import Iterable, Sequence

from conceptloader.errors import ConfigError, ReadError
from conceptloader.format.spec.layout import DAMAGED, bad
from conceptloader.storage.reads import read_file, retrying


class Roots:
    """Directories that hold all files of a dataset.

    By default this is the parent of the dataset's directory: a dataset may refer to its siblings (joins, adopted
    files), everything else has to be allowed by name. A manifest is data and cannot widen this itself.
    """

    def __init__(self, directory: str, roots: Sequence[str | os.PathLike[str]] | None) -> None:
        self.directory = os.path.abspath(directory)
        if isinstance(roots, (str, os.PathLike)):
            raise ConfigError(f"roots: found the single path {roots!r}, expected a list of directories; write [...]")
        self.given = None if roots is None else [os.path.abspath(root) for root in roots]
        chosen = [os.path.dirname(self.directory)] if self.given is None else [self.directory, *self.given]
        self.roots = list(dict.fromkeys(chosen))
        self._lexical = [_with_separator(root) for root in self.roots]
        self._real = [_with_separator(os.path.realpath(root)) for root in (*self.roots, self.directory)]

    def resolve(self, path: str) -> str:
        """The absolute form of a path in the manifest, which is relative to the dataset's directory."""
        return os.path.normpath(os.path.join(self.directory, path))

    def check(self, paths: Iterable[str], where: str) -> None:
        """Refuse paths that leave the roots, before anything is opened. Looks at each directory once."""
        seen: set[str] = set()
        for path in paths:
            directory, _, name = path.rpartition("/")
            if not name or name in (".", "..") or not _possible(path):
                raise bad(where, repr(path), "the path of a file", DAMAGED)
            if directory in seen:
                continue
            seen.add(directory)
            if not self.allows(self.resolve(path[: -len(name)] or ".")):
                raise self._outside(where, path)

    def allows(self, directory: str) -> bool:
        """Whether files of a resolved directory may be read, links aside."""
        return _with_separator(directory).startswith(tuple(self._lexical))

    def check_real(self, path: str) -> None:
        """Refuse a file that is outside the roots once symbolic links are followed.

        Raises: FormatError; ReadError if that cannot be known, since a link that cannot be read is not followed.
        """
        try:
            real = os.path.realpath(path, strict=True)
        except FileNotFoundError:
            real = os.path.realpath(path)  # whoever opens it will say so
        except OSError as error:
            raise ReadError(error.errno, f"{path}: cannot be looked at: {error.strerror}") from error
        if not real.startswith(tuple(self._real)):
            raise self._outside(path, real)

    def read_whole(self, path: str, limit: int) -> bytes:
        """A small file, its path resolved. Raises: FormatError if it is outside or larger than `limit`, ReadError."""
        retrying(lambda: self.check_real(path))
        return read_file(path, limit)

    def _outside(self, where: str, found: str) -> Exception:
        return bad(
            where,
            repr(found),
            f"a file below {', '.join(self.roots)}",
            "if you trust this dataset, allow the directory: roots=[...]",
        )


def _possible(path: str) -> bool:
    """Whether a file can be called so: JSON knows characters that no path has."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _with_separator(path: str) -> str:
    return path if path.endswith(os.sep) else path + os.sep
