"""What both readers of batches have in common."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from conceptloader.batch.layout import Batch, BatchLayout
from conceptloader.order.mixture import KernelTables

U64Array = npt.NDArray[np.uint64]
I64Array = npt.NDArray[np.int64]
Allocate = Callable[[int], npt.NDArray[np.uint8]]
"""Bytes -> a block of memory, not initialized, in which the arrays of a batch are laid out."""


class Order(Protocol):
    """Mixture, Sequential, and whatever else says which window of which member a sample is."""

    def sample_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array, U64Array]: ...


@runtime_checkable
class CompiledOrder(Order, Protocol):
    """An order whose windows kernels find by themselves, if it has tables for them."""

    @property
    def kernel_tables(self) -> KernelTables | None: ...


class Reader(Protocol):
    """Reads batches. Safe to use from many threads, after a fork, and to pickle."""

    layout: BatchLayout

    def read(self, samples: U64Array, allocate: Allocate | None = None) -> Batch:
        """The batch of trainer sample indices uint64 [B], as the layout says, in memory from `allocate`.

        Raises: FormatError for damaged data, ReadError if the operating system fails; ConfigError for a sample of a
        member that has left the configuration.
        """
        ...

    def where(self, thread: int) -> str:
        """What the thread of this identifier is reading at this moment, for a log: sample, file, offset."""
        ...
