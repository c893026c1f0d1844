"""One build at a time in a directory: a lock that ends with its process, however that ends.

flock on a file in the directory. Linux takes it to the server for NFS (4, or 3 with its lock manager), so that it holds
between machines, unless the mount says otherwise (local_lock, nolock); Lustre needs the mount option flock. Where there
are no locks a build goes on with a warning: the lock makes errors clear and deleting safe, but a dataset is whole
without it, since every file appears under its name at once.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator

from conceptloader.errors import ConfigError, ReadError
from conceptloader.format.durable import make_directories

log = logging.getLogger(__name__)

LOCK = ".build.lock"
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


@contextlib.contextmanager
def build_lock(directory: str | os.PathLike[str], *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of the build in `directory`, which is created if need be.

    shared: beside others that do so too, for tasks that write shards of one build. Else alone, and the lock's file is
    removed at the end. Raises: ConfigError if somebody else builds there, ReadError.
    """
    path = os.path.join(os.path.abspath(directory), LOCK)
    make_directories(os.path.dirname(path))
    descriptor = _locked(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        if not shared:
            with contextlib.suppress(OSError):  # for the message of another build alone
                os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        if not shared:
            with contextlib.suppress(OSError):  # a file that stays keeps nobody out
                os.unlink(path)
        os.close(descriptor)


def _locked(path: str, kind: int) -> int:
    """A descriptor that holds the lock. Who waits for a file that its holder removes would lock what has no name."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ReadError(error.errno, f"{path}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except OSError as error:
            if error.errno in _NO_LOCKS:
                log.warning(
                    "%s: the file system has no locks (%s); make sure that no other build runs there",
                    os.path.dirname(path), error.strerror,
                )  # fmt: skip
                return descriptor
            holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise ReadError(error.errno, f"{path}: cannot be locked: {error.strerror}") from error
            raise ConfigError(
                f"{os.path.dirname(path)}: another build is running there ({holder or 'of several tasks'}), expected "
                "none; wait for its end, or build into another directory"
            ) from error
        os.close(descriptor)
