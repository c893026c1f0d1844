"""Ids that documents lack, or share: counted from the tables of hashes that the finished shards have."""

import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import InputError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints
from conceptloader.format.write.build import Build

_PART = 1 << 22  # hashes that are compared at a time
_EXAMPLES, _COMPARED = 3, 1000


@dataclass
class IdCounts:
    """missing: documents without an id. repeated: those whose id another one has, with some of these ids."""

    documents: int = 0
    missing: int = 0
    repeated: int = 0
    examples: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """A sentence for what is odd; that no document has an id is not."""
        found = [self._repeated] if self.repeated else []
        return found + ([self._missing] if 0 < self.missing < self.documents else [])

    @property
    def _repeated(self) -> str:
        shown = ", ".join(map(repr, self.examples))
        return f"{self.repeated:,} of {self.documents:,} documents have an id that another one has, such as {shown}"

    @property
    def _missing(self) -> str:
        return f"{self.missing:,} of {self.documents:,} documents have no id"

    def check(self, where: str) -> None:
        """Raises: InputError if a document has none, or that of another one."""
        if self.repeated or self.missing:
            found = self._repeated if self.repeated else self._missing
            fix = "repair the ids (7 and '7' are the same one), or omit --unique-ids: the same command then "
            raise InputError(where, found, "an id of its own for each", fix + "ends with the shards that are there")


@dataclass(frozen=True)
class _Shard:
    """A finished shard. size: of its table."""

    path: str
    documents: int
    size: int

    @property
    def table(self) -> NDArray[np.void]:
        """Mapped for as long as it is held: a process may not map that many files."""
        return np.memmap(f"{self.path}.documents.hash", fmt.HASH_ENTRY, "r")

    def first(self, value: int) -> int:
        """Index of the first entry whose hash is not below `value`."""
        hashes = self.table["hash"]
        return bisect_left(range(self.size), value, key=lambda i: int(hashes[i]))

    def id(self, entry: int) -> bytes:
        """The id of the document of an entry of the table."""
        ordinal = int(self.table["ordinal"][entry])
        with open(f"{self.path}.documents.ids", "rb") as file:
            file.seek(8 * ordinal)
            begin, end = np.frombuffer(file.read(16), fmt.OFFSET).tolist()
            file.seek(8 * (self.documents + 1) + begin)
            return file.read(end - begin)


def count_ids(build: Build) -> IdCounts:
    """Of a build whose shards are finished, in bounded memory: in parts of the range of the hashes."""
    reports = [build.report(shard) for shard in range(build.num_shards)]
    found, shards = IdCounts(), []
    for shard, report in enumerate(reports):
        if report is not None:
            found.documents += report.documents
            facts = report.files.get("documents.hash")
            if facts is not None and facts.size:
                size = facts.size // fmt.HASH_ENTRY.itemsize
                shards.append(_Shard(os.path.join(build.path, build.shard_name(shard)), report.documents, size))
    present = sum(shard.size for shard in shards)
    found.missing = found.documents - present
    groups = 0
    for hashes, counts in _repeated(shards, -(-present // _PART)):
        for value, count in zip(hashes.tolist(), counts.tolist(), strict=True):
            groups += 1
            if groups <= _COMPARED:  # of more of them, some ids with the same hash would not be seen in the number
                names = _names(shards, value)
                if count == len(names) == 2 and names[0] != names[1]:
                    continue
                if len(found.examples) < _EXAMPLES:
                    found.examples.append(names[0].decode("utf-8", "replace"))
            found.repeated += count
    return found


def _repeated(shards: list[_Shard], parts: int) -> Iterator[tuple[NDArray[np.uint64], Ints]]:
    """Hashes that several entries have, with their numbers, in order."""
    for part in range(parts):
        low, high = (border * (1 << 64) // parts for border in (part, part + 1))
        found = [shard.table["hash"][shard.first(low) : shard.first(high)].copy() for shard in shards]
        hashes, counts = np.unique(np.concatenate(found), return_counts=True)
        yield hashes[counts > 1], counts[counts > 1].astype(np.int64)


def _names(shards: list[_Shard], value: int) -> list[bytes]:
    """The ids of the first two entries with this hash."""
    found: list[bytes] = []
    for shard in shards:
        at = shard.first(value)
        while len(found) < 2 and at < shard.size and int(shard.table["hash"][at]) == value:
            found.append(shard.id(at))
            at += 1
    return found
