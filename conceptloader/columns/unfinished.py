"""A column that is being written: a folder in the dataset's directory with sparse files, and a log of each writer.

Items are written at their place. A range of tokens counts once its bytes are synced and it is in the log, with the hash
of these bytes; so a writer that is killed loses what was written since, and nothing else.
"""

import contextlib
import errno
import fcntl
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.columns.places import At
from conceptloader.errors import ConfigError, ReadError
from conceptloader.format.spec.columnfile import ColumnFile, ItemFiles, column_file
from conceptloader.format.spec.jsonfile import dump_json, load_json
from conceptloader.format.spec.manifest import CREATED_BY
from conceptloader.storage.durable import make_directories, open_own, require_own, sync_directory, write_file
from conceptloader.storage.lock import NO_LOCKS
from conceptloader.storage.reads import named, opened, read_file

log = logging.getLogger(__name__)

RECORD = np.dtype([("start", "<u8"), ("stop", "<u8"), ("hash", "<u8"), ("check", "<u8")])
"""Tokens [start, stop) of the dataset's files, XXH3-64 of their items; check: the three and _CHECK by exclusive or."""
_CHECK = 0x636F6C756D6E7321  # what a crash leaves at the end of a file, zeros for instance, is no record
_LIMIT = 1 << 40
_MOST_OPEN = 64
_PLAN = "column.json"
_FORMAT = "conceptstream-column-unfinished"
_FINISHING = "finish.lock"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all writers of a column agree in. at: where values stand in batches."""

    dtype: str
    shape: tuple[int, ...]
    stream_fingerprint: str
    at: At

    def described(self, shards: int = 1) -> ColumnFile:
        """The column, of which no shard has values yet."""
        return ColumnFile(
            dtype=self.dtype,
            shape=self.shape,
            stream_fingerprint=self.stream_fingerprint,
            files=ItemFiles.absent(shards),
            created_by=CREATED_BY,
            extra={"at": self.at},
        )


def taken(directory: str, name: str) -> ConfigError:
    """The error for a column that is there already."""
    fix = f"pass another NAME, or remove it: conceptloader column {directory} {name} --remove"
    return ConfigError(os.path.join(directory, column_file(name)), "a column", "a name that no column has", fix)


class Unfinished:
    """The folder. Raises everywhere: ReadError naming the file, for a disk that is full too."""

    def __init__(self, directory: str, name: str) -> None:
        self.directory, self.name = directory, name
        self.path = os.path.join(directory, f"{name}.column.unfinished")
        self._log: int | None = None
        self._log_path = ""
        self._files: dict[int, int] = {}  # descriptors, the one that was opened first in front
        self._dirty = set[int]()  # shards to be synced
        self._records: list[tuple[int, int, int]] = []
        self.waiting = 0  # bytes that are written and not in the log

    def agree(self, plan: Plan | None) -> Plan:
        """Begin or continue with this plan, or the one that is there. Raises: ConfigError for another one, or none."""
        target = os.path.join(self.path, _PLAN)
        require_own(self.directory, target)
        if plan is not None:
            make_directories(self.path)
            write_file(target, dump_json({"format": _FORMAT, "version": 1, **asdict(plan)}), exclusive=True)
        elif not os.path.exists(target):
            raise ConfigError(
                self.path,
                "no column that is being written",
                "the name of a column that was begun",
                "pass the NAME of a column that was begun, or begin it: column_writer",
            )
        found = load_json(target).parse(Plan, _FORMAT, 1)
        if plan is not None and found != plan:
            theirs, ours = asdict(found), asdict(plan)
            key = next(key for key in ours if ours[key] != theirs[key])
            fix = f"pass the same {key}, or begin again: conceptloader column {self.directory} {self.name} --remove"
            raise ConfigError(f"{self.path}: {key}", theirs[key], f"{ours[key]!r}, as this writer is to write", fix)
        return found

    def items(self, shard: int) -> str:
        """The file of a shard's items."""
        return os.path.join(self.path, f"{shard:05}.items")

    def has_items(self, shard: int) -> bool:
        """Whether that file is there."""
        return os.path.exists(self.items(shard))

    def put(self, shard: int, offset: int, data: memoryview, tokens: tuple[int, int], known: int) -> None:
        """Write the items of some tokens, of hash `known`, at their place in the file of their shard."""
        self._open_log()
        descriptor, done = self._file(shard), 0
        self._dirty.add(shard)
        try:
            with named(self.items(shard), "written"):
                while done < len(data):
                    done += os.pwrite(descriptor, data[done:], offset + done)
        except ReadError as error:
            fix = "make room, and run the same again: what is in the log counts, `has` says of which rows"
            raise ReadError(error.path, error.found, error.expected, fix, errno=error.errno) from error
        self._records.append((*tokens, known))
        self.waiting += len(data)

    def flush(self) -> None:
        """Sync what was written, and then log it: from now on it counts."""
        if not self._records:
            return
        for shard in sorted(self._dirty):
            with named(self.items(shard), "synced"):
                os.fsync(self._file(shard))
        self._dirty.clear()
        found = np.zeros(len(self._records), RECORD)
        found["start"], found["stop"], found["hash"] = np.array(self._records, np.uint64).T
        found["check"] = _check(found)
        log = self._open_log()
        with named(self._log_path, "written"):
            # In one call after whole records, so that what a full disk cuts off is not in front of others.
            size = os.fstat(log).st_size // RECORD.itemsize * RECORD.itemsize
            data = memoryview(found.tobytes())
            while len(data):
                count = os.pwrite(log, data, size)
                data, size = data[count:], size + count
            os.fsync(log)
        self._records.clear()
        self.waiting = 0

    def close(self) -> None:
        """Log what was written, and let go of all files. Without an error it is done, and can be repeated."""
        try:
            self.flush()
        finally:
            self._close_files()
            if self._log is not None:
                os.close(self._log)
                self._log = None

    def records(self) -> NDArray[Any]:
        """What all writers have logged, RECORD [n]."""
        found = [np.zeros(0, RECORD)]
        for path in self._logs():
            data = read_file(path, _LIMIT)
            found.append(np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD))
        records: NDArray[Any] = np.concatenate(found)
        whole: NDArray[Any] = records[records["check"] == _check(records)]
        return whole

    def require_no_writer(self) -> None:
        """Raise ConfigError if somebody has a log open."""
        for path in self._logs():
            with opened(path) as descriptor:
                if self._is_held(descriptor):
                    fix = "call close() on all ranks first: finish() is for one process"
                    raise ConfigError(self.path, "a writer that is still open", "a column without an open writer", fix)

    def require_not_finishing(self) -> None:
        """Raise ConfigError if the column is being finished."""
        with contextlib.suppress(FileNotFoundError), open(self.lock, "rb") as file:
            if self._is_held(file.fileno()):
                fix = "call write() before finish(), which is for one process"
                raise ConfigError(self.path, "a column that is being finished", "a column that is being written", fix)

    @property
    def lock(self) -> str:
        """The file that is locked while the column is finished or removed."""
        return os.path.join(self.path, _FINISHING)

    def _is_held(self, descriptor: int) -> bool:
        """Whether somebody else has a file locked. Shared, since servers of NFS lock nothing else for readers."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                self._say_without_locks(error)
                return False
            return True
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False

    def _say_without_locks(self, error: OSError) -> None:
        if error.errno not in NO_LOCKS:
            raise ReadError(
                self.path,
                f"cannot be locked: {error.strerror}",
                errno=error.errno,
                fix="run `chmod u+w` on the folder, or write into a copy on a file system with locks",
            ) from error
        problem = "the file system has no locks"
        log.warning("%s: %s; make sure that all writers are closed before it is finished", self.path, problem)

    def _logs(self) -> Sequence[str]:
        with named(self.path, "looked at"):
            names = sorted(os.listdir(self.path))
        return [os.path.join(self.path, name) for name in names if name.endswith(".log")]

    def _file(self, shard: int) -> int:
        found = self._files.get(shard)
        if found is None:
            if len(self._files) >= _MOST_OPEN:
                os.close(self._files.pop(next(iter(self._files))))
            found = self._files[shard] = open_own(self.directory, self.items(shard))
        return found

    def _close_files(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _open_log(self) -> int:
        """This writer's log, locked as long as it is open."""
        if self._log is None:
            self._log_path = os.path.join(self.path, f"{secrets.token_hex(8)}.log")
            self._log = open_own(self.directory, self._log_path, os.O_EXCL)
            try:
                fcntl.flock(self._log, fcntl.LOCK_EX)
            except OSError as error:
                self._say_without_locks(error)
            with named(self._log_path, "written"):
                sync_directory(self.path)
            self.require_not_finishing()  # who begins to finish from now on finds this log
        return self._log


def _check(records: NDArray[Any]) -> NDArray[np.uint64]:
    found: NDArray[np.uint64] = records["start"] ^ records["stop"] ^ records["hash"] ^ np.uint64(_CHECK)
    return found
