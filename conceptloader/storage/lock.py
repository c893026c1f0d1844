"""One build at a time in a directory: a lock that ends with its process, however that ends.

flock on a file in the directory. Linux takes it to the server for NFS (4, or 3 with its lock manager), so that it holds
between machines, unless the mount says otherwise (local_lock, nolock); Lustre needs the mount option flock. Where there
are no locks a build continues with a warning: the lock makes errors clear and deleting safe, but a dataset is whole
without it, since every file appears under its name at once.
"""

import contextlib
import errno
import fcntl
import io
import logging
import os
import socket
from collections.abc import Iterator

from conceptloader.errors import ConfigError, ReadError
from conceptloader.storage.durable import make_directories, open_own
from conceptloader.storage.reads import named

log = logging.getLogger(__name__)

LOCK = ".build.lock.tmp"  # temporary: a complete dataset has none, or one that means nothing
_RUNNING = "another build is running there ({holder}), expected none; wait for its end, or pass another --out"
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


@contextlib.contextmanager
def build_lock(directory: str | os.PathLike[str], *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold the lock of the build in `directory`, which is created if need be.

    shared: with other shared holders, for tasks that write shards of one build. Else alone, and the lock's file is
    removed at the end. wait: for somebody else who builds there.

    Raises: ConfigError if somebody else builds there, ReadError.
    """
    path = os.path.join(os.path.abspath(directory), LOCK)
    make_directories(os.path.dirname(path))
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    with _locked(path, kind) as file:
        with contextlib.suppress(OSError):  # for the message of who comes next alone
            file.truncate(0)
            file.write(b"" if shared else f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            if not shared:
                with contextlib.suppress(OSError):  # a file that stays keeps nobody out
                    os.unlink(path)


def _open(path: str, flags: int) -> int:
    return open_own(os.path.dirname(path), path, flags)


def _locked(path: str, kind: int) -> io.FileIO:
    """Its last holder may have removed the file between our opening and our locking."""
    directory = os.path.dirname(path)
    while True:
        with named(path, "written"):
            file = open(path, "a+b", buffering=0, opener=_open)  # noqa: SIM115 - open as long as the lock is held
        try:
            fcntl.flock(file, kind)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    return file
        except OSError as error:
            if error.errno in _NO_LOCKS:
                problem = "the file system has no locks"
                log.warning("%s: %s (%s); make sure that nobody else writes there", directory, problem, error.strerror)
                return file
            file.seek(0)
            holder = file.read(200).decode("utf-8", "replace") or "of several tasks"
            file.close()
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise ReadError(
                    path,
                    f"cannot be locked: {error.strerror}",
                    fix=f"run `chmod u+w {path}`, or use a file system with locks",
                    errno=error.errno,
                ) from error
            raise ConfigError(directory, _RUNNING.format(holder=holder)) from error
        file.close()
