"""Descriptors for the kernels: a table of open files that a call may use without asking anyone."""

import os
from functools import partial

import numpy as np
import numpy.typing as npt

from conceptloader.batch.kernels.native import STREAM
from conceptloader.batch.kernels.tables import Tables
from conceptloader.format.read.dataset import Dataset
from conceptloader.storage.descriptors import Budget, OpenTable


class OpenFiles(OpenTable):
    """The open files of one reader; keys are rows of its shard table.

    files: i32 [shards, columns], -1 for closed; used: i64 [shards], clock of the last use.
    """

    def __init__(self, tables: Tables, budget: Budget | None = None) -> None:
        self.tables = tables
        rows = len(tables.shards)
        self.files: npt.NDArray[np.int32] = np.full((rows, len(tables.kinds)), -1, np.int32)
        super().__init__(np.zeros(rows, np.int64), budget)

    def open(self, row: int) -> None:
        """Open the files of a shard that are read, and pin them until `unpin`.

        Raises: FormatError for a file of another size than the manifest says, or that was replaced since it was first
        opened; ReadError.
        """
        dataset, shard = self._owner(row)
        with self.budget.lock:
            self.pins[row] += 1
        opened: list[tuple[int, int]] = []
        try:
            # The stream comes last: where it is open, everything is.
            for column in reversed(np.flatnonzero(self.tables.needed[row]).tolist()):
                if self.files[row, column] < 0:
                    descriptor = self.budget.open(partial(dataset.files.open, self.tables.kinds[column], shard))
                    opened.append((column, descriptor))
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: windows are random
        except BaseException:
            for _, descriptor in opened:
                os.close(descriptor)
            self.unpin([row])
            raise
        with self.budget.lock:
            for column, descriptor in opened:
                if self.files[row, column] >= 0:  # another thread was faster
                    os.close(descriptor)
                    continue
                self.put(row, descriptor)
                self.files[row, column] = descriptor

    def forget(self, row: int) -> None:
        """See OpenTable; here, the kernels."""
        self.files[row, STREAM + 1 :] = -1
        self.files[row, STREAM] = -1

    def path(self, row: int, column: int) -> str:
        """The file in a column of a row, for messages; the stream if there is none, since the row and the column of a
        thread that reads on may not belong together."""
        dataset, shard = self._owner(row)
        kind = self.tables.kinds[column]
        return dataset.files.path(kind if kind in dataset.manifest.shards.files else self.tables.kinds[STREAM], shard)

    def _owner(self, row: int) -> tuple[Dataset, int]:
        """(dataset, shard) of a row."""
        dataset, first = next(owner for owner in reversed(self.tables.owners) if owner[1] <= row)
        return dataset, row - first
