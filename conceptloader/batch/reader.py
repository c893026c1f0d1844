"""What is told a reader of batches, and what it does with them after its kernels."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from conceptloader.batch.layout import LOSS_WEIGHT, Batch, BatchLayout, TrackLayout
from conceptloader.blend import View
from conceptloader.blend.samples import present
from conceptloader.errors import FormatError
from conceptloader.format.read.values import decode_all
from conceptloader.kernels.kernel import I64Array, U64Array
from conceptloader.kernels.order import KernelTables
from conceptloader.order import reference

Picked = tuple[I64Array, U64Array]
"""[B] members of the order, and [B] windows of these."""


_GOLDEN, _MIX_A, _MIX_B = (np.uint64(value) for value in (reference.GOLDEN, reference.MIX_A, reference.MIX_B))


def sample_randoms(key: int, samples: U64Array) -> I64Array:
    """`reference.sample_random` of many samples, int64 [B]; key: derive_key(seed, "sample random")."""

    def mixed(x: U64Array) -> U64Array:
        x = (x ^ (x >> np.uint64(30))) * _MIX_A
        x = (x ^ (x >> np.uint64(27))) * _MIX_B
        last: U64Array = x ^ (x >> np.uint64(31))
        return last

    values: U64Array = mixed(np.uint64(key) + mixed(np.asarray(samples, np.uint64) + _GOLDEN))
    found: I64Array = (values >> np.uint64(1)).astype(np.int64)
    return found


def decode_records(batch: Batch, layout: BatchLayout, views: Sequence[View | None], members: I64Array) -> None:
    """Give what codecs make of the records of `decoded` tracks for their bytes. members: [B], of the samples.

    Raises: FormatError for a record that its codec cannot decode.
    """
    for track in layout.tracks:
        if not track.decoded:
            continue
        values, offsets = memoryview(batch.pop(f"{track.name}_values")), batch.pop(f"{track.name}_offsets")
        found: list[list[Any]] = []
        for row, member in enumerate(members.tolist()):
            dataset, first = present(views, member).dataset, row * track.max_spans
            borders = offsets[first : first + int(batch[f"{track.name}_num_spans"][row]) + 1].tolist()
            records = [values[a:b] for a, b in pairwise(borders)]
            where = f"{dataset.path}: track {track.name!r}"
            found.append(decode_all(dataset.codec(track.name), records, where) if records else [])
        batch[f"{track.name}_records"] = found


def weigh(batch: Batch, track: TrackLayout, samples: U64Array) -> None:
    """Give labels in spans of the track of loss weights the numbers of their spans.

    Raises: FormatError for a number that is not finite.
    """
    index, *_, numbers = (batch.pop(name) for name in dict(track.arrays(*batch[LOSS_WEIGHT].shape)))
    rows, places = np.nonzero(index >= 0)
    found = numbers[rows, index[rows, places]]
    if not np.isfinite(found).all():
        raise FormatError(
            f"sample {samples[rows[~np.isfinite(found)][0]]}: track {track.track}: found a weight that is no finite "
            "number, expected finite ones; build it again, or quarantine these tokens"
        )
    batch[LOSS_WEIGHT][rows, places] = found


def in_sample(cause: Exception, who: str) -> Exception:
    """An error of a file, said of the sample that needs it."""
    return type(cause)(*cause.args[:-1], f"{who}: {cause.args[-1]}")


class Order(Protocol):
    """Mixture, Sequential, and whatever else says which window of which member a sample is."""

    def sample_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array, U64Array]: ...


@runtime_checkable
class CompiledOrder(Order, Protocol):
    """An order whose windows kernels find by themselves, if it has tables for them."""

    @property
    def kernel_tables(self) -> KernelTables | None: ...
