"""Writing that survives a crash: temporary name, fsync, rename, fsync of the directory.

Every byte that a build writes goes through this module. A file has its final name only when it is complete on disk.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.base.terminal import masked
from conceptloader.base.version import PAGES
from conceptloader.errors import ConfigError
from conceptloader.storage.reads import named, read_at
from conceptloader.storage.sample import sample_checksum

_CHUNK = 1 << 22
TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.tmp")
_URL = re.compile(r"(?:.*/)?(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.+)")


def require_local(path: str) -> None:
    """Raise ConfigError for an output at a URL, also if somebody has made a path of it since.

    Nothing is written to a store, and a folder of the name `s3:` would go with the machine that it is on.
    """
    if found := _URL.fullmatch(path):
        url = masked(f"{found['scheme']}://{found['rest']}")
        fix = f"write to a disk, then copy it, a dataset's manifest.json last: {PAGES}/object-stores.md"
        raise ConfigError("output", f"the URL {url}", "a path on a disk", fix)


def require_own(directory: str, path: str) -> None:
    """Raise ConfigError for a file or folder that is below `directory` by its name alone.

    A dataset is data: a link that it was shipped with leads wherever its maker wanted something written or removed.
    """
    for name in [*accumulate(os.path.relpath(path, directory).split(os.sep), os.path.join)]:
        at = os.path.join(directory, name)
        if name == os.pardir or os.path.islink(at):
            raise _elsewhere(at)


def open_own(directory: str, path: str, flags: int = 0) -> int:
    """A descriptor to read and write a file below `directory` in its place, made if need be.

    Every file that is written under its final name in a dataset is opened here; all others are renamed to it.

    Raises: ConfigError for a link, also a hard one, ReadError naming the file.
    """
    require_own(directory, path)
    with named(path, "written"):
        flags |= os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o666)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise _elsewhere(path)
    return descriptor


def _elsewhere(path: str) -> ConfigError:
    return ConfigError(
        path,
        "a link, or no file of its own",
        "files and folders of the dataset, which alone are written and removed",
        f"see where it leads (ls -ld {path}), and remove the link: nothing was written there",
    )


def temporary_name(path: str) -> str:
    require_local(path)
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.{secrets.token_hex(8)}.tmp")


def sync_directory(path: str) -> None:
    """Make renames in the directory `path` permanent."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: str) -> None:
    """Create a directory and its missing parents, permanently.

    Raises: ConfigError if something else has the name of one of them, or for a URL; ReadError naming it.
    """
    require_local(path)
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        with named(directory, "created"):
            try:
                os.mkdir(directory)
            except FileExistsError:
                if not os.path.isdir(directory):  # else another process of the build was faster
                    what = "a link to nowhere" if os.path.islink(directory) else "a file"
                    raise ConfigError(
                        directory, str(what), "a directory or nothing", "pass another --out: nothing was changed"
                    ) from None
            sync_directory(os.path.dirname(directory) or ".")


def write_file(path: str, data: bytes, exclusive: bool = False) -> bool:
    """Write a small file atomically and durably.

    exclusive: an existing file is left alone. Returns: whether this call created the file.
    Raises: ReadError naming the file.
    """
    try:
        with completed(path, exclusive) as temporary, named(path, "written"), open(temporary, "xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


@contextlib.contextmanager
def completed(path: str, exclusive: bool = False) -> Iterator[str]:
    """The name of a file to write in the block, which durably becomes `path` at its end.

    It is removed if the block fails.

    exclusive: raises FileExistsError at the end if the name is taken by then. Raises: ReadError naming the file.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        with named(path, "written"):
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            taken = exclusive and not _rename_new(temporary, path)
            if not exclusive:
                os.rename(temporary, path)
            sync_directory(os.path.dirname(path) or ".")
        if taken:
            raise FileExistsError(path)
    finally:
        _unlink(temporary)


def _rename_new(source: str, target: str) -> bool:
    """Rename, or link, unless the target exists. Returns: whether it did not."""
    try:
        os.link(source, target)  # unlike rename, fails when the name is taken
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # A file system without hard links: two first calls at the same instant are told apart by the caller, who
        # reads back what is there.
        if os.path.exists(target):
            return False
        os.rename(source, target)
    return True


class Spool:
    """An append-only file under a temporary name, with its size and running xxh3-64 checksum.

    As a context manager it is discarded unless it was committed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self.sample = ""  # known once it is committed
        self._temporary = temporary_name(path)
        self._hash = xxhash.xxh3_64()
        with named(path, "written"):
            self._file = open(self._temporary, "xb+", buffering=1 << 20)  # noqa: SIM115 - lives as long as the spool

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def write(self, data: Any) -> None:
        """Append bytes or the memory of a contiguous array."""
        view = memoryview(data).cast("B")
        with named(self.path, "written"):
            self._file.write(view)
        self._hash.update(view)
        self.size += len(view)

    def append(self, other: "Spool") -> None:
        """Append what was written to another one so far."""
        for offset in range(0, other.size, _CHUNK):
            self.write(other.read(offset, min(_CHUNK, other.size - offset)))

    def read(self, offset: int, size: int) -> bytes:
        with named(self.path, "written"):
            self._file.flush()
        return read_at(self._file.fileno(), offset, size, self.path)

    def array(self, dtype: Any, start: int, stop: int) -> NDArray[Any]:
        """Items [start, stop) of `dtype`, clipped to what was written."""
        dtype = np.dtype(dtype)
        stop = min(stop, self.size // dtype.itemsize)
        return np.frombuffer(self.read(start * dtype.itemsize, max(0, stop - start) * dtype.itemsize), dtype)

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()

    def commit(self) -> None:
        """Sync and give the file its name. The caller syncs the directory, once for all files."""
        self.sample = sample_checksum(self.size, self.read)
        with named(self.path, "written"):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._temporary, self.path)

    def facts(self) -> dict[str, Any]:
        """What a shard's report says about a file that is committed."""
        return {"size": self.size, "checksum": self.checksum, "sample": self.sample}

    def discard(self) -> None:
        """Close and remove the temporary file. Does nothing after `commit`."""
        with contextlib.suppress(OSError):  # closing writes what is buffered, which may fail, and is not wanted
            self._file.close()
        _unlink(self._temporary)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)
