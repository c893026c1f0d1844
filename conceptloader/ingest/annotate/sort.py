"""Annotations by document, in bounded memory: sorted runs in one temporary file, merged a piece at a time."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

import numpy as np
from numpy.typing import NDArray

from conceptloader.ingest.annotate.rows import ITEM

_MERGED = 1 << 18  # items held while merging, spread over the runs
_LEAST = 64


class Sorter:
    """Collects items (dtype ITEM) with their records and gives them back by document, those of one as they came."""

    def __init__(self, file: IO[bytes]) -> None:
        """file: empty, for what does not fit into memory."""
        self._file = file
        self._runs: list[_Run] = []

    def add(self, items: NDArray[np.void], records: Sequence[bytes]) -> None:
        """A run: sorted here, so its size is what bounds the memory."""
        if not len(items):
            return
        order = np.argsort(items["document"], kind="stable")
        begin = self._file.seek(0, os.SEEK_END)
        self._file.write(items[order].tobytes())
        self._runs.append(_Run(self._file, begin, self._file.tell(), len(items)))
        for start in range(0, len(order), _MERGED):
            self._file.write(b"".join([records[i] for i in order[start : start + _MERGED].tolist()]))

    def batches(self) -> Iterator[tuple[NDArray[np.void], list[bytes]]]:
        """Items with their records by document; a document is never spread over two batches."""
        share = max(_LEAST, _MERGED // max(1, len(self._runs)))
        while self._runs:
            for run in self._runs:
                if not len(run.items):
                    run.load(share)
            # A run may go on with the last document in memory, unless nothing is left of it in the file.
            open_ends = [int(run.items["document"][-1]) for run in self._runs if run.left]
            limit = min(open_ends, default=None)
            parts = [run.take(limit) for run in self._runs]
            items = np.concatenate([part for part, _ in parts])
            if len(items):
                records = [record for _, part in parts for record in part]
                order = np.argsort(items["document"], kind="stable")
                yield items[order], [records[i] for i in order.tolist()]
            else:  # one document is larger than what is in memory of a run
                for run in self._runs:
                    if run.left and int(run.items["document"][-1]) == limit:
                        run.load(max(share, len(run.items)))
            self._runs = [run for run in self._runs if run.left or len(run.items)]


@dataclass
class _Run:
    """A sorted run in the file; `items` and `records` are those in memory, `left` is how many are not yet."""

    file: IO[bytes]
    items_at: int
    data_at: int
    left: int
    items: NDArray[np.void] = field(default_factory=lambda: np.empty(0, ITEM))
    records: list[bytes] = field(default_factory=list)

    def load(self, count: int) -> None:
        count = min(count, self.left)
        self.file.seek(self.items_at)
        items = np.frombuffer(self.file.read(count * ITEM.itemsize), ITEM)
        self.file.seek(self.data_at)
        sizes = items["size"].tolist()
        self.items = np.concatenate([self.items, items])
        self.records += map(self.file.read, sizes)
        self.left -= count
        self.items_at += count * ITEM.itemsize
        self.data_at += sum(sizes)

    def take(self, limit: int | None) -> tuple[NDArray[np.void], list[bytes]]:
        """Remove the items of documents below `limit` (None: all)."""
        count = len(self.items) if limit is None else int(np.searchsorted(self.items["document"], limit))
        items, records = self.items[:count], self.records[:count]
        self.items, self.records = self.items[count:], self.records[count:]
        return items, records
