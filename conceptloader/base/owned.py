"""Whether somebody else could have written a file: nothing that is executed may come from them."""

import contextlib
import os
import stat
from collections.abc import Collection
from pathlib import Path


def distrust_file(status: os.stat_result) -> str | None:
    """Why an open file may hold what somebody else wrote; None if only its user and root can."""
    return _foreign(status) if stat.S_ISREG(status.st_mode) else "it is no file"


def distrust(directory: str, *, above: bool = True) -> str | None:
    """Why somebody else could decide what is in `directory`; None if nobody but its user and root can.

    It must be a directory, no link, of this user or root, that only they can write to. above: so must all be above it,
    as its path is written and as it is once links are followed: who can write there can put another in its place. A
    sticky directory (/tmp) lets nobody do that. Raises OSError.
    """
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        return "it is a symbolic link or a file"
    reason = _foreign(status)
    if reason or not above:
        return reason
    unmapped = _unmapped()
    for path in sorted({*Path(directory).parents, *Path(os.path.realpath(directory)).parents}):
        status = os.lstat(path)
        shared = stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX
        if reason := _foreign(status, unmapped, writable=0 if shared else 0o022):
            return f"{path}, where it is: {reason}"
    return None


def make_directory(directory: str) -> None:
    """With all above it, each for its user alone to write to: os.makedirs leaves that to the umask. Raises OSError."""
    for path in (*reversed(Path(directory).parents), Path(directory)):
        if not path.exists():
            with contextlib.suppress(FileExistsError):
                path.mkdir(0o755)


def _foreign(status: os.stat_result, trusted: Collection[int] = (), writable: int = 0o022) -> str | None:
    if status.st_uid not in (0, os.geteuid(), *trusted):
        return f"it belongs to user {status.st_uid}, not to user {os.geteuid()} who runs this"
    if status.st_mode & writable:
        return f"others can write to it (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def _unmapped() -> set[int]:
    """In a rootless container all of the host's users, root among them, look like this one."""
    with contextlib.suppress(OSError):
        if str(2**32 - 1) not in Path("/proc/self/uid_map").read_text().split():
            return {int(Path("/proc/sys/kernel/overflowuid").read_text())}
    return set()
