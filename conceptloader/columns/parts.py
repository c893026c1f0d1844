"""A column that is being written: a folder in the dataset's directory, with files of values.

A file holds a table of runs of tokens, ascending, then their items. It gets its name when it is whole and on the disk;
so a writer that is killed loses what it wrote since its last flush, and nothing else. Of values of one token those in
the file that sorts last hold.
"""

import os
import re
import secrets
import shutil
import time
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read.bulk import ragged
from conceptloader.format.read.concepts import Coverage, united
from conceptloader.format.spec.columnfile import ColumnFile, column_file, parse_column
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.jsonfile import load_json
from conceptloader.format.spec.manifest import Manifest
from conceptloader.storage.durable import Spool, make_directories, require_own, sync_directory, write_file
from conceptloader.storage.reads import named, opened, read_at

_TOP = 24  # bytes: the number of runs, XXH3-64 of their table (first token and end, <i8 each) and of the items
_FLUSH_BYTES, _FLUSH_S = 1 << 27, 30.0
_FLUSH_SHARE = 50  # of the time since the start a kill may lose a 50th, so that a long run leaves few files
_HEAD = "column.json"  # as NAME.column.json, without files
_NAME = re.compile(r"[0-9]{6}-[0-9]{6}-[0-9]{6}-[0-9a-f]{8}\.values")


def taken(directory: str, name: str) -> ConfigError:
    """The error for a column that is there already."""
    fix = f"pass another NAME, or remove it: conceptloader column {directory} {name} --remove"
    return ConfigError(os.path.join(directory, column_file(name)), "a column", "a name that no column has", fix)


class Part:
    """A file of values. start, stop: int64 [n], its runs of tokens. Raises: FormatError if it is corrupt, ReadError."""

    def __init__(self, path: str, itemsize: int) -> None:
        self.path, self._itemsize, self._running = path, itemsize, xxhash.xxh3_64()
        with opened(path) as descriptor:
            runs, table, self._hash = np.frombuffer(read_at(descriptor, 0, _TOP, path), "<u8").tolist()
            size, self._at = os.fstat(descriptor).st_size, _TOP + 16 * runs
            data = read_at(descriptor, _TOP, 16 * runs, path) if self._at <= size else b""
        self.start, self.stop = np.frombuffer(data, "<i8").reshape(-1, 2).T.copy()
        self._before = Coverage(self.start, self.stop)
        items = int((self.stop - self.start).sum())
        self._require(xxhash.xxh3_64_intdigest(data) == table and size == self._at + items * itemsize)

    def items(self, low: int, high: int) -> tuple[Ints, NDArray[Any]]:
        """(tokens, their items) of tokens [low, high). To be asked for ascending ranges, and then `check`ed."""
        first, last = np.searchsorted(self.stop, low, side="right"), np.searchsorted(self.start, high)
        start, stop = np.maximum(self.start[first:last], low), np.minimum(self.stop[first:last], high)
        tokens, data = ragged(start, stop - start), b""
        if len(tokens):
            at = self._at + int(self._before(start[:1])[0]) * self._itemsize
            with opened(self.path) as descriptor:
                data = read_at(descriptor, at, len(tokens) * self._itemsize, self.path)
            self._running.update(data)
        return tokens, np.frombuffer(data, f"V{self._itemsize}")

    def check(self) -> None:
        """Whether all items were as they were written."""
        self._require(self._running.intdigest() == self._hash)

    def _require(self, sound: bool) -> None:
        if not sound:
            fix = f"run `rm {self.path}`, and write again the batches of which has(batch) is False"
            found = "other values than were written: it is corrupt"
            raise FormatError(self.path, found, "the file as it was written", fix)


def covered(parts: list[Part]) -> Coverage:
    """Tokens that have values in any of these."""
    start, stop = np.concatenate([np.zeros((2, 0), np.int64), *([part.start, part.stop] for part in parts)], 1)
    return Coverage(*united(np.zeros_like(start), start, stop)[1:])


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

    def names(self) -> list[str]:
        """Of the files of values, in the order in which they were written."""
        with named(self.path, "looked at"):
            return sorted(filter(_NAME.fullmatch, os.listdir(self.path)))

    def read(self, itemsize: int) -> list[Part]:
        """These files."""
        paths = [os.path.join(self.path, name) for name in self.names()]
        for path in paths:
            require_own(self.directory, path)
        return [Part(path, itemsize) for path in paths]

    def remove(self) -> None:
        """All of it."""
        with named(self.path, "removed"):
            shutil.rmtree(self.path)


class PartWriter:
    """Keeps values in memory, and writes a file of them now and then. known: tokens of which the disk has values."""

    def __init__(self, parts: Parts, itemsize: int, rank: int) -> None:
        self._parts, self._itemsize, self._number, self._size = parts, itemsize, 0, 0
        # After all files that are there, and of ranks in the same order in all columns: of tokens that two ranks have
        # written, ids and their probabilities are of one of them.
        session = 1 + max((int(name[:6]) for name in parts.names()), default=0)
        self._name = f"{session:06}-{rank:06}"
        self._begun = self._flushed = time.monotonic()
        self._tokens, self._items = list[Ints](), list[NDArray[Any]]()
        self._files = parts.read(itemsize)
        self.known = covered(self._files)

    def add(self, tokens: Ints, items: NDArray[Any]) -> None:
        """Keep the items of tokens, and put on the disk what is there long enough."""
        self._tokens.append(tokens)
        self._items.append(items)
        self._size += tokens.nbytes + items.nbytes
        now = time.monotonic()
        if self._size >= _FLUSH_BYTES or now - self._flushed >= max(_FLUSH_S, (now - self._begun) / _FLUSH_SHARE):
            self.flush()

    def flush(self) -> None:
        """Write a file of what is kept, of a token the last item. If it cannot be written, what was kept is lost."""
        self._flushed = time.monotonic()
        if not self._size:
            return
        tokens, data = np.concatenate(self._tokens), np.concatenate(self._items)
        self._tokens, self._items, self._size = [], [], 0
        if (np.diff(tokens) <= 0).any():  # else they are in order, as those of a file are
            order = np.argsort(tokens, kind="stable")
            order = order[np.diff(tokens[order], append=-1) != 0]
            tokens, data = tokens[order], data[order]
        begins = np.flatnonzero(np.diff(tokens, prepend=-2) != 1)
        runs = np.stack([tokens[begins], tokens[begins] + np.diff(begins, append=len(tokens))], 1).astype("<i8")
        top = np.array([len(runs), xxhash.xxh3_64_intdigest(runs.data), xxhash.xxh3_64_intdigest(data.data)], "<u8")
        path = os.path.join(self._parts.path, f"{self._name}-{self._number:06}-{secrets.token_hex(4)}.values")
        with Spool(path) as spool:
            for one in (top, runs, data.view("u1")):
                spool.write(one)
            spool.commit()
        with named(self._parts.path, "written"):
            sync_directory(self._parts.path)
        self._number += 1
        self._files.append(Part(path, self._itemsize))
        self.known = covered(self._files)
