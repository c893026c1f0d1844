"""Bytes of objects in stores, which kernels read out of memory: what a call lacked is fetched together."""

from collections import defaultdict

import numpy as np

from conceptloader.errors import FormatError, ReadError
from conceptloader.format.spec.layout import DAMAGED, bad
from conceptloader.kernels.records import HELD
from conceptloader.loader.batch.layout import Array
from conceptloader.loader.batch.open_files import OpenFiles
from conceptloader.storage.objects import Objects
from conceptloader.storage.source import Expected

_Place = tuple[int, int, int]  # an object, by its row and column, and bytes [start, stop) of it


class Held:
    """Bytes of objects for the calls of one thread: what they asked for in vain is fetched together.

    table: HELD records. touched: since the last `drop`. Blocks that are likely to be read again stay for the next
    batches, as long as they take no more memory than their source grants.
    """

    def __init__(self, files: OpenFiles) -> None:
        self._files, self.table, self.touched, self._kept_bytes = files, np.zeros(0, HELD), False, 0
        self._blocks: dict[_Place, Array] = {}
        self._once: set[_Place] = set()
        self._wanted = defaultdict[Objects, dict[_Place, tuple[Expected, str]]](dict)

    def __bool__(self) -> bool:
        """Whether something is wanted."""
        return bool(self._wanted)

    def want(self, row: int, column: int, offset: int, size: int, who: str) -> None:
        """Have `fetch` get bytes of an object.

        who: wants them, for messages. Raises: FormatError if there are not so many.
        """
        self.touched = True
        source, file = self._files.object(row, column)
        number = row * self._files.files.shape[1] + column
        if offset + size > file.size:
            found = f"bytes [{offset}, {offset + size}) to be read"
            raise bad(f"{who}: {file.path}", found, f"bytes below {file.size}, its size", DAMAGED)
        for start, stop in source.blocks(file, offset, size):
            if (number, start, stop) not in self._blocks:
                self._wanted[source].setdefault((number, start, stop), (file, who))

    def fetch(self) -> None:
        """All at the same time. Raises: FormatError, ReadError, and then nothing is wanted any more."""
        wanted, self._wanted = self._wanted, defaultdict(dict)
        for source, places in wanted.items():
            self._kept_bytes = source.kept_bytes
            found = source.ranges((file, start, stop - start) for (_, start, stop), (file, _) in places.items())
            for place, (file, who) in places.items():
                try:
                    data = next(found)
                except (FormatError, ReadError) as error:
                    raise error.within(who) from error
                self._blocks[place] = np.frombuffer(data, np.uint8, place[2] - place[1])
                if file.once:
                    self._once.add(place)
        self._number()

    def drop(self) -> None:
        """After a batch: forget what is not likely to be read again."""
        for place in self._once:
            del self._blocks[place]
        self._once.clear()
        self._wanted.clear()
        self.touched = False
        if sum(map(len, self._blocks.values())) > self._kept_bytes:
            self._blocks.clear()
        self._number()

    def _number(self) -> None:
        rows = [(*place, data.__array_interface__["data"][0]) for place, data in sorted(self._blocks.items())]
        self.table = np.array(rows, HELD)
