"""A column that is being written: a folder in the dataset's directory, with files of values that are only appended to.

Such a file is items in the order in which they were written, then a record for each run of tokens. It gets its
name when it is whole and on the disk; so a writer that is killed loses what it wrote since, and nothing else. Of values
of one token those in the file that sorts last hold, and in a file the last ones.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.format.read.concepts import Coverage, united
from conceptloader.format.spec.columnfile import ColumnFile, column_file, parse_column
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.jsonfile import load_json
from conceptloader.format.spec.manifest import Manifest
from conceptloader.storage.durable import Spool, make_directories, require_own, sync_directory, write_file
from conceptloader.storage.reads import named, opened, read_at

RECORD = np.dtype([("start", "<u8"), ("stop", "<u8"), ("hash", "<u8")])
"""Tokens [start, stop) of the dataset's files, XXH3-64 of their items."""
_TAIL = np.dtype([("records", "<u8"), ("hash", "<u8")])  # how many, and XXH3-64 of these
_FLUSH_BYTES, _FLUSH_S = 1 << 28, 30.0
_FLUSH_SHARE = 50  # of the time since the start a kill may lose a 50th, so that a long run leaves few files
_HEAD = "column.json"  # as NAME.column.json, without files
_NAME = re.compile(r"[0-9]{6}-[0-9]{6}-[0-9]{6}-[0-9a-f]{8}\.values")


def taken(directory: str, name: str) -> ConfigError:
    """The error for a column that is there already."""
    fix = f"pass another NAME, or remove it: conceptloader column {directory} {name} --remove"
    return ConfigError(os.path.join(directory, column_file(name)), "a column", "a name that no column has", fix)


class Parts:
    """The folder. Raises everywhere: ConfigError for a link in its place, ReadError naming a file."""

    def __init__(self, directory: str, name: str) -> None:
        self.directory, self.name = directory, name
        self.path = os.path.join(directory, f"{name}.column.unfinished")
        require_own(directory, self.path)

    def agree(self, manifest: Manifest, column: ColumnFile | None = None) -> ColumnFile:
        """The column that is written here: begun as `column`, or continued if that says the same.

        Raises: ConfigError for another one, or none; FormatError for a dataset that was built again meanwhile.
        """
        target = os.path.join(self.path, _HEAD)
        require_own(self.directory, target)
        if column is not None:
            make_directories(self.path)
            write_file(target, column.dump(), exclusive=True)
        elif not os.path.exists(target):
            raise ConfigError(
                self.path,
                "no column that is being written",
                "the name of a column that was begun",
                "pass the NAME of a column that was begun, or begin it: column_writer",
            )
        found = parse_column(load_json(target), self.name, manifest)
        for key in ("dtype", "shape", "extra") if column is not None else ():
            theirs, ours = getattr(found, key), getattr(column, key)
            if theirs != ours:
                fix = f"pass the same {key}, or begin again: conceptloader column {self.directory} {self.name} --remove"
                raise ConfigError(f"{self.path}: {key}", theirs, f"{ours}, as this writer is to write", fix)
        return found

    def files(self) -> list[str]:
        """Those with values, in the order in which they were written."""
        with named(self.path, "looked at"):
            return sorted(filter(_NAME.fullmatch, os.listdir(self.path)))

    def records(self, file: str, itemsize: int) -> NDArray[Any]:
        """RECORD [n] of a file. Raises: FormatError if it is corrupt."""
        path = os.path.join(self.path, file)
        require_own(self.directory, path)
        with opened(path) as descriptor:
            size = os.fstat(descriptor).st_size
            tail = np.frombuffer(read_at(descriptor, max(size - _TAIL.itemsize, 0), _TAIL.itemsize, path), _TAIL)[0]
            length = int(tail["records"]) * RECORD.itemsize
            at = size - _TAIL.itemsize - length
            data = read_at(descriptor, at, length, path) if at >= 0 else b""
        found = np.frombuffer(data, RECORD)
        items = int((found["stop"] - found["start"]).sum())
        if at != items * itemsize or xxhash.xxh3_64_intdigest(data) != tail["hash"]:
            raise self.corrupt(file)
        return found

    def remove(self) -> None:
        """All of it."""
        with named(self.path, "removed"):
            shutil.rmtree(self.path)

    def corrupt(self, file: str) -> FormatError:
        """The error for a file that is not as it was written."""
        path = os.path.join(self.path, file)
        fix = f"run `rm {path}`, and write again the batches of which has(batch) is False"
        return FormatError(path, "other values than were written: it is corrupt", "the file as it was written", fix)


class PartWriter:
    """Appends to files of the folder, of which one is open. covered: the tokens that have values, in all of them."""

    def __init__(self, parts: Parts, itemsize: int, rank: int) -> None:
        self._parts, self._itemsize = parts, itemsize
        # After all files that are there, and of ranks in the same order in all columns: of tokens that two ranks have
        # written, ids and their probabilities are of one of them.
        session = 1 + max((int(file[:6]) for file in parts.files()), default=0)
        self._name, self._number = f"{session:06}-{rank:06}", 0
        self._begun = self._flushed = time.monotonic()
        self._spool: Spool | None = None
        self._records: list[tuple[int, int, int]] = []
        self.covered = self._on_disk()

    def append(self, pieces: Iterable[tuple[int, int, memoryview]]) -> None:
        """Write the items of tokens [start, stop), and put on the disk what is there long enough."""
        done = len(self._records)
        try:
            for start, stop, data in pieces:
                if self._spool is None:
                    name = f"{self._name}-{self._number:06}-{secrets.token_hex(4)}.values"
                    self._spool = Spool(os.path.join(self._parts.path, name))
                self._spool.write(data)
                self._records.append((start, stop, xxhash.xxh3_64_intdigest(data)))
        except ReadError:
            self._drop()
            raise
        self.covered.add(np.array(self._records[done:], RECORD))
        now, size = time.monotonic(), 0 if self._spool is None else self._spool.size
        if size >= _FLUSH_BYTES or now - self._flushed >= max(_FLUSH_S, (now - self._begun) / _FLUSH_SHARE):
            self.flush()

    def flush(self) -> None:
        """Give what was written its name: from now on it counts."""
        self._flushed = time.monotonic()
        if self._spool is None:
            return
        records = np.array(self._records, RECORD).tobytes()
        tail = np.array([(len(self._records), xxhash.xxh3_64_intdigest(records))], _TAIL)
        try:
            self._spool.write(records + tail.tobytes())
            self._spool.commit()
            with named(self._parts.path, "written"):
                sync_directory(self._parts.path)
        except ReadError:
            self._drop()
            raise
        self._spool = None
        self._records.clear()
        self._number += 1

    def _drop(self) -> None:
        """Forget what has no name: its file is removed."""
        if self._spool is not None:
            self._spool.discard()
        self._spool = None
        self._records.clear()
        self.covered = self._on_disk()

    def _on_disk(self) -> "Covered":
        found = Covered()
        for file in self._parts.files():
            found.add(self._parts.records(file, self._itemsize))
        return found


class Covered:
    """Tokens of a dataset that have values."""

    def __init__(self) -> None:
        self._parts = [(np.zeros(0, np.int64),) * 2]
        self._before: Coverage | None = None

    def add(self, records: NDArray[Any]) -> None:
        """Those of RECORD [n]."""
        self._parts.append((records["start"].astype(np.int64), records["stop"].astype(np.int64)))
        self._before = None

    @property
    def intervals(self) -> tuple[Ints, Ints]:
        """Disjoint, in order."""
        if len(self._parts) > 1:
            start, stop = map(np.concatenate, zip(*self._parts, strict=True))
            self._parts = [united(np.zeros_like(start), start, stop)[1:]]
        return self._parts[0]

    def counts(self, start: Ints, stop: Ints) -> Ints:
        """How many tokens of [start, stop) have values, int64 [n]."""
        if self._before is None:
            self._before = Coverage(*self.intervals)
        return self._before(stop) - self._before(start)
