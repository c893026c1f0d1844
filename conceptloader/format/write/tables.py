"""Spooled tables of a shard under construction: block tables, runs of records, external ids. Memory is bounded.

spools: of the shard; whoever closes it discards what was not committed.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.format.spec import layout as fmt
from conceptloader.format.write.ladder import REACH, Ladder
from conceptloader.storage.durable import Spool

_CHUNK = 1 << 19  # entries handled at a time
_SORT_LIMIT = 1 << 22  # hash entries sorted in memory at a time


class BlockTable:
    """For each block of tokens the number of the last item (document or entry) that begins at or before it."""

    def __init__(self, path: str, block_tokens: int, spools: ExitStack) -> None:
        self._spool = spools.enter_context(Spool(path))
        self._block = block_tokens
        self._blocks = 0
        self._items = 0

    def add(self, firsts: NDArray[np.uint64]) -> None:
        """The next items begin at `firsts`, in order."""
        if not len(firsts):
            return
        last = int(firsts[-1])
        until = -(-last // self._block)
        if until > self._blocks:
            borders = np.arange(self._blocks, until, dtype=np.uint64) * np.uint64(self._block)
            item = np.searchsorted(firsts, borders, "right").astype(np.int64) - 1 + self._items
            self._spool.write(item.astype(fmt.OFFSET))
            self._blocks = until
        self._items += len(firsts)

    def finish(self, tokens: int, target: Spool) -> None:
        """Append the table and its closing entry to `target`."""
        blocks = fmt.num_blocks(tokens, self._block)
        self._spool.write(np.full(blocks - self._blocks, self._items - 1, np.int64).astype(fmt.OFFSET))
        target.append(self._spool)
        target.write(np.array([self._items], fmt.OFFSET))


class Runs:
    """Entries (first token, record) in order, maximal: equal neighbours are merged, gaps are entries too."""

    def __init__(self, path: str, block_tokens: int, spools: ExitStack) -> None:
        self.spool = spools.enter_context(Spool(path))
        self.table = BlockTable(path + ".blocks", block_tokens, spools)
        self.count = 0
        self._record: int | None = None

    def add(self, entries: NDArray[np.void]) -> None:
        """entries: ENTRY [n] with increasing `first`."""
        if not len(entries):
            return
        record = entries["record"]
        changed = np.empty(len(record), bool)
        changed[0] = self._record is None or record[0] != self._record
        np.not_equal(record[1:], record[:-1], out=changed[1:])
        if not changed.all():
            entries = entries[changed]
        if len(entries):
            self.spool.write(entries)
            self.table.add(np.ascontiguousarray(entries["first"]))
            self.count += len(entries)
            self._record = int(entries["record"][-1])

    def ladder(self, tokens: int) -> Ladder:
        """Counts for windows within this shard, from all entries in pieces with those of the next REACH tokens."""

        def first(entry: int) -> int:
            return int(self.spool.array(fmt.ENTRY, entry, entry + 1)["first"][0]) if entry < self.count else tokens

        ladder = Ladder()
        for i in range(0, self.count, _CHUNK):
            stop = i + _CHUNK
            border = first(stop) + REACH
            while stop < self.count and first(stop) < border:
                stop += _CHUNK // 16 + 1
            entries = self.spool.array(fmt.ENTRY, i, stop + 1)
            starts = entries["first"].astype(np.int64)
            ends = np.append(starts[1:], tokens)
            some = entries["record"] != fmt.NO_RECORD
            some[np.searchsorted(starts, border) :] = False
            ladder.add(starts[some], ends[some])
        return ladder

    def dense(self, tokens: int, step: int) -> Iterator[NDArray[np.uint32]]:
        """The record of each token, `step` tokens at a time."""
        i = 0  # the entry that holds token a, or the one before
        for a in range(0, tokens, step):
            b = min(a + step, tokens)
            entries = self.spool.array(fmt.ENTRY, i, i + step + 1)
            starts = entries["first"].astype(np.int64)
            count = int(np.searchsorted(starts, b))
            yield np.repeat(entries["record"][:count], np.diff(np.append(np.maximum(starts[:count], a), b)))
            i += count - 1


class Ids:
    """External string ids and their hash table. An empty string means that the document has none."""

    def __init__(self, path: str, spools: ExitStack) -> None:
        self._offsets = spools.enter_context(Spool(path + ".ids"))
        self._text = spools.enter_context(Spool(path + ".text"))
        self._hashes = spools.enter_context(Spool(path + ".hash"))
        self._offsets.write(np.zeros(1, fmt.OFFSET))
        self.documents = 0
        self.present = 0

    def add(self, data: Sequence[bytes]) -> None:
        """One id, in UTF-8, for each document."""
        ends = self._text.size + np.cumsum([len(one) for one in data])
        hashes = [(xxhash.xxh3_64_intdigest(one), self.documents + i) for i, one in enumerate(data) if one]
        self._text.write(b"".join(data))
        self._offsets.write(ends.astype(fmt.OFFSET))
        self._hashes.write(np.array(hashes, fmt.HASH_ENTRY))
        self.present += len(hashes)
        self.documents += len(data)

    def skip(self, documents: int) -> None:
        """Documents without an id."""
        if documents:
            self._offsets.write(np.full(documents, self._text.size, fmt.OFFSET))
            self.documents += documents

    def finish(self, ids: Spool, hashes: Spool) -> None:
        ids.append(self._offsets)
        ids.append(self._text)
        # Hashes are uniform: cut their range into parts that are sorted in memory one after the other.
        parts = -(-self.present // _SORT_LIMIT)
        borders = [part * (1 << 64) // parts for part in range(parts + 1)]
        for low, high in pairwise(borders):
            hashes.write(self._sorted_part(low, high - 1))

    def _sorted_part(self, low: int, last: int) -> NDArray[np.void]:
        found: list[NDArray[np.void]] = []
        for i in range(0, self.present, _CHUNK):
            entries = self._hashes.array(fmt.HASH_ENTRY, i, i + _CHUNK)
            found.append(entries[(entries["hash"] >= np.uint64(low)) & (entries["hash"] <= np.uint64(last))])
        entries = np.concatenate(found)
        return entries[np.lexsort((entries["ordinal"], entries["hash"]))]
