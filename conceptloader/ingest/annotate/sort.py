"""Annotations by document, in bounded memory: sorted runs in one temporary file, merged a piece at a time."""

import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from conceptloader.ingest.annotate.rows import ITEM

_MERGED = 1 << 18  # items held while merging, spread over the runs
_LEAST = 64


class Sorter:
    """Collects items (dtype ITEM) with their records and gives them back by document, those of one as they came."""

    def __init__(self, directory: str) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - has no name, and ends with this object
        self._runs: list[_Run] = []
        self._end = 0

    def __enter__(self) -> "Sorter":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, items: NDArray[np.void], records: Sequence[bytes]) -> None:
        """A run: sorted here, so its size is what bounds the memory."""
        if not len(items):
            return
        order = np.argsort(items["document"], kind="stable")
        head = items[order].tobytes()
        self._file.seek(self._end)
        self._file.write(head)
        for start in range(0, len(order), _MERGED):
            self._file.write(b"".join([records[i] for i in order[start : start + _MERGED].tolist()]))
        self._runs.append(_Run(self, self._end, len(items)))
        self._end = self._file.tell()

    def read(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)

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


class _Run:
    """A sorted run in the file; `items` and `records` are those in memory, `left` is how many are not yet."""

    def __init__(self, sorter: Sorter, offset: int, count: int) -> None:
        self.items = np.empty(0, ITEM)
        self.records: list[bytes] = []
        self.left = count
        self._sorter = sorter
        self._items_at = offset
        self._data_at = offset + count * ITEM.itemsize

    def load(self, count: int) -> None:
        count = min(count, self.left)
        items = np.frombuffer(self._sorter.read(self._items_at, count * ITEM.itemsize), ITEM)
        data = self._sorter.read(self._data_at, int(items["size"].sum()))
        ends = np.cumsum(items["size"], dtype=np.int64)
        starts = ends - items["size"]
        self.items = np.concatenate([self.items, items])
        self.records += [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        self.left -= count
        self._items_at += count * ITEM.itemsize
        self._data_at += len(data)

    def take(self, limit: int | None) -> tuple[NDArray[np.void], list[bytes]]:
        """Remove the items of documents below `limit` (None: all)."""
        count = len(self.items) if limit is None else int(np.searchsorted(self.items["document"], limit))
        items, records = self.items[:count], self.records[:count]
        self.items, self.records = self.items[count:], self.records[count:]
        return items, records
