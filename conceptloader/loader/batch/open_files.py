"""What kernels read from: a table of open files, which a call uses without asking."""

import os
from bisect import bisect_right
from functools import partial
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from conceptloader.format.read.dataset import Dataset
from conceptloader.kernels.system import OBJECT, STREAM, publish
from conceptloader.loader.batch.tables import Tables
from conceptloader.storage.handles import HANDLES, Handles, OpenTable
from conceptloader.storage.objects import Objects
from conceptloader.storage.source import Expected


class OpenFiles(OpenTable):
    """The open files of one reader; keys are rows of its shard table.

    files: i32 [shards, columns], -1 for closed, OBJECT for what is never opened; used: i64 [shards], clock of the last
    use.
    """

    def __init__(self, tables: Tables, handles: Handles = HANDLES) -> None:
        self.tables = tables
        rows = len(tables.shards)
        self.files: npt.NDArray[np.int32] = np.full((rows, len(tables.kinds)), -1, np.int32)
        for dataset, first in tables.owners:
            if dataset.files.remote is not None:
                self.files[first : first + dataset.num_shards] = OBJECT
        super().__init__(np.zeros(rows, np.int64), handles)

    def open(self, row: int) -> None:
        """Open the files of a shard that are read.

        Raises: FormatError for a file of another size than the manifest says, or that was replaced since it was first
        opened, and if the dataset was rebuilt; ReadError.
        """
        dataset, shard = self.owner(row)
        local = dataset.files.local
        assert local is not None  # else it is an OBJECT
        opened: list[tuple[int, int]] = []
        try:
            # The stream comes last: where it is open, everything is.
            for column in reversed(np.flatnonzero(self.tables.needed[row]).tolist()):
                if self.files[row, column] < 0:
                    file = dataset.files.expected(self.tables.kinds[column], shard)
                    descriptor = self.handles.open(partial(local.open, file))
                    opened.append((column, descriptor))
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: windows are random
            dataset.files.require_unchanged()  # after all are open: so they are those that the manifest means
        except BaseException:
            for _, descriptor in opened:
                os.close(descriptor)
            raise
        with self.handles.lock:
            for column, descriptor in opened:
                if self.files[row, column] >= 0:  # another thread was faster
                    os.close(descriptor)
                    continue
                self.put(row, descriptor)
                publish(self.files, row, column, descriptor)

    def forget(self, row: int) -> None:
        """See OpenTable; here, the kernels.

        A kernel that still sees the descriptor began before, with the lock held: so the file is not closed until it
        has ended. One that begins later takes the lock after this, and sees -1.
        """
        self.files[row, STREAM + 1 :] = -1
        self.files[row, STREAM] = -1

    def path(self, row: int, column: int) -> str:
        """The file in a column of a row, for messages.

        It is the stream if there is none, since the row and the column of a thread that reads on may not belong
        together.
        """
        dataset, shard = self.owner(row)
        kind = self.tables.kinds[column]
        return dataset.files.path(kind if kind in dataset.files.kinds else self.tables.kinds[STREAM], shard)

    def object(self, row: int, column: int) -> tuple[Objects, Expected]:
        """Where an object is, and what is expected of it."""
        dataset, shard = self.owner(row)
        assert dataset.files.remote is not None
        return dataset.files.remote, dataset.files.expected(self.tables.kinds[column], shard)

    def owner(self, row: int) -> tuple[Dataset, int]:
        """(dataset, shard) of a row."""
        dataset, first = self.tables.owners[bisect_right(self.tables.owners, row, key=itemgetter(1)) - 1]
        return dataset, row - first
