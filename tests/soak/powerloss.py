"""A disk that keeps only what was synced: records what a program does to files, then says what may be left of it.

The model is the weakest that POSIX allows. The content of a file is durable as of its last fsync; before, it is empty,
or any beginning of what was written. An entry of a directory (creation, rename, removal) is durable once the directory
was synced; of those that were not, any subset may be.
"""

import builtins
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path


@dataclass(eq=False)
class Inode:
    """A file or a directory."""

    synced: bytes = b""
    latest: Path | None = None  # where to look for what was written but not synced
    entries: dict[str, "Inode"] | None = None  # of a directory: what is durable
    pending: list[tuple[str | None, str | None, "Inode"]] = field(default_factory=list)  # (removed, added, file)


class Recorder:
    """Watches all changes below `root` while it is installed. A crash may happen before each of `operations`."""

    def __init__(self, root, patch, crash_at=None):
        self.root = root
        self.top = Inode(entries={})
        self.known = {str(root): self.top}
        self.operations = 0
        self.crash_at = crash_at
        self.state = None
        real = {name: getattr(os, name) for name in ("rename", "link", "unlink", "mkdir")}
        patch.setattr(os, "fsync", lambda fd: self._fsync(fd))
        patch.setattr(os, "mkdir", self._watch(real["mkdir"], partial(self._created, directory=True)))
        patch.setattr(os, "rename", self._watch(real["rename"], self._rename))
        patch.setattr(os, "link", self._watch(real["link"], self._link))
        patch.setattr(os, "unlink", self._watch(real["unlink"], self._unlink))
        opened = builtins.open

        def watching_open(file, mode="r", *args, **options):
            new = "x" in mode or "w" in mode or ("a" in mode and not os.path.exists(file))
            result = opened(file, mode, *args, **options)
            if new:
                self._created(str(file))
            return result

        patch.setattr(builtins, "open", watching_open)

    def _inside(self, path):
        return str(path).startswith(str(self.root) + os.sep)

    def _watch(self, real, record):
        def call(*args, **options):
            if not self._inside(args[0]):
                return real(*args, **options)
            self._tick()
            result = real(*args, **options)
            record(*map(str, args[: 2 if record in (self._rename, self._link) else 1]))
            return result

        return call

    def _tick(self):
        self.operations += 1
        if self.operations == self.crash_at:
            raise PowerLoss

    def _directory(self, path):
        folder, name = os.path.split(path)
        return self.known[folder], name

    def _created(self, path, directory=False):
        if self._inside(path):
            inode = self.known[path] = Inode(latest=Path(path), entries={} if directory else None)
            folder, name = self._directory(path)
            folder.pending.append((None, name, inode))

    def _rename(self, source, target):
        inode = self.known[target] = self.known.pop(source)
        inode.latest = Path(target)
        folder, name = self._directory(source)
        assert folder is self._directory(target)[0], "renames are within a directory"
        folder.pending.append((name, self._directory(target)[1], inode))

    def _link(self, source, target):
        inode = self.known[target] = self.known[source]
        inode.latest = Path(target)
        folder, name = self._directory(target)
        folder.pending.append((None, name, inode))

    def _unlink(self, path):
        inode = self.known.pop(path)
        folder, name = self._directory(path)
        folder.pending.append((name, None, inode))

    def _fsync(self, descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not self._inside(path) and path != str(self.root):
            return
        self._tick()
        inode = self.known[path]
        if inode.entries is None:
            inode.synced = Path(path).read_bytes()
            return
        for change in inode.pending:
            _apply(inode.entries, change)
        inode.pending.clear()

    def leave(self, target, choice, rng):
        """Write what the disk holds after a crash now. choice: "none", "all" or "some" of what was not synced."""
        self._leave(self.top, target, choice, rng)

    def _leave(self, folder, target, choice, rng):
        target.mkdir()
        entries = dict(folder.entries or {})
        for change in folder.pending:
            if choice == "all" or (choice == "some" and rng.random() < 0.5):
                _apply(entries, change)
        for name, inode in entries.items():
            if inode.entries is not None:
                self._leave(inode, target / name, choice, rng)
                continue
            data = inode.synced
            if choice == "some" and inode.latest is not None and inode.latest.exists():
                written = inode.latest.read_bytes()
                data = data if len(data) == len(written) else written[: int(rng.integers(len(data), len(written) + 1))]
            (target / name).write_bytes(data)


class PowerLoss(BaseException):
    """The moment of the crash; not to be caught by anyone."""


def _apply(entries, change):
    removed, added, inode = change
    if removed is not None:
        entries.pop(removed, None)
    if added is not None:
        entries[added] = inode
