"""Columns of texts as arrays, which may lie in a file that is mapped: strings are made when they are asked for."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
_AT_ONCE = 1 << 12  # checksums that iteration makes


class Packed(Sequence[Any]):
    """A column that is no list. there: bool [n], where it is not null."""

    def __init__(self, there: Bools) -> None:
        self.there = there

    def __len__(self) -> int:
        return len(self.there)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[k] for k in range(len(self))[at]]
        k = range(len(self))[at]
        return self._at(k) if self.there[k] else None

    def _at(self, k: int) -> Any:
        raise NotImplementedError


class Coded(Packed):
    """Few values, by numbers: u1 [n], null above them."""

    def __init__(self, codes: NDArray[np.uint8], values: tuple[Any, ...]) -> None:
        super().__init__(codes < len(values) if values else everywhere(False, len(codes)))
        self.codes, self.values = codes, values

    def _at(self, k: int) -> Any:
        return self.values[self.codes[k]]


class Hexes(Packed):
    """Checksums, as u8 [n]."""

    def __init__(self, numbers: NDArray[np.uint64], there: Bools) -> None:
        super().__init__(there)
        self.numbers = numbers

    def _at(self, k: int) -> str:
        return f"{int(self.numbers[k]):016x}"

    def __iter__(self) -> Iterator[str | None]:
        for first in range(0, len(self), _AT_ONCE):
            digits = self.numbers[first : first + _AT_ONCE].astype(">u8").tobytes().hex()
            for k, there in enumerate(self.there[first : first + _AT_ONCE].tolist()):
                yield digits[16 * k : 16 * k + 16] if there else None


class Paths(Packed):
    """Paths: `folders`, each with the slash at its end, or ""; which one, u4 [n]; and names, end to end.

    ends: u8 [n], of the names in `names`, bytes as the file system has them.
    """

    def __init__(
        self,
        folders: Sequence[str],
        folder: NDArray[np.uint32],
        ends: NDArray[np.uint64],
        names: NDArray[np.uint8],
        there: Bools,
    ) -> None:
        super().__init__(there)
        self.folders, self.folder, self.ends, self.names = folders, folder, ends, names

    def _at(self, k: int) -> str:
        begin, end = int(self.ends[k - 1]) if k else 0, int(self.ends[k])
        name = self.names[begin:end].tobytes().decode("utf-8", "surrogateescape")
        return f"{self.folders[self.folder[k]]}{name}"

    def one_of_each(self, among: Bools) -> list[int]:
        """Rows, one for each folder that is met in these."""
        there = self.there & among
        if len(self.folders) == 1:
            return [int(np.argmax(there))] if there.any() else []
        rows = np.flatnonzero(there)
        found: list[int] = rows[np.unique(self.folder[rows], return_index=True)[1]].tolist()
        return found


def everywhere(value: Any, count: int) -> NDArray[Any]:
    """The same in each of so many rows, without their memory; not to be written to."""
    return np.broadcast_to(np.array(value), count)


def nothing(count: int) -> Packed:
    """A column of null."""
    return Coded(everywhere(np.uint8(0), count), ())


def is_there(column: Sequence[Any]) -> Bools:
    """Where a column is not null."""
    return column.there if isinstance(column, Packed) else np.array([value is not None for value in column], np.bool_)


def is_equal(column: Sequence[Any], value: object) -> Bools:
    """Where a column has a value."""
    if isinstance(column, Coded):
        return np.asarray(column.codes == column.values.index(value))
    return np.array([found == value for found in column], np.bool_)


def one_of_each_folder(paths: Sequence[str | None], among: Bools | None = None) -> Iterator[str]:
    """Paths of a column, in these rows, that have all folders which are in it; of a list all."""
    if isinstance(paths, Paths):
        yield from (paths[k] for k in paths.one_of_each(everywhere(True, len(paths)) if among is None else among))
    elif not isinstance(paths, Packed):
        rows = enumerate(paths)
        yield from (path for k, path in rows if path is not None and (among is None or among[k]))
