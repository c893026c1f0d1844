"""What is done with a batch after its kernels: records decoded, loss weights, samples without loss counted."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from conceptloader.config import View, present
from conceptloader.errors import FormatError
from conceptloader.format.read.values import decode_all
from conceptloader.kernels.arrays import LOSS_WEIGHT
from conceptloader.kernels.kernel import I64Array, U64Array
from conceptloader.loader.batch.layout import Batch, BatchLayout, TrackLayout

_TELL = {10**k for k in range(12)}
logger = logging.getLogger(__name__)


Step = Callable[[Batch, U64Array, I64Array], None]
"""Of a batch, the indices of its samples, and their members of the order."""


def steps_after(views: Sequence[View | None], layout: BatchLayout) -> list[Step]:
    """What batches of this layout need, in this order. views[k] is member k."""
    decoded = tuple(track for track in layout.tracks if track.decoded)
    steps: list[Step] = [partial(decode_records, decoded, views)] if decoded else []
    steps += [partial(weigh, track) for track in layout.weights]  # of a track with levels the innermost last
    of_members = np.array([1.0 if view is None else view.loss_weight for view in views], np.float32)
    if layout.factors and (len(layout.factors) > 1 or (of_members != 1).any()):
        steps.append(partial(multiply, layout.factors, of_members))
    return steps


def decode_records(
    tracks: Sequence[TrackLayout], views: Sequence[View | None], batch: Batch, _: U64Array, members: I64Array
) -> None:
    """Give what codecs make of the records of these tracks for their bytes.

    Raises: FormatError for a record that its codec cannot decode.
    """
    for track in tracks:
        values, offsets = memoryview(batch.pop(f"{track.name}_values")), batch.pop(f"{track.name}_offsets")
        found: list[list[Any]] = []
        for row, member in enumerate(members.tolist()):
            dataset, first = present(views, member).dataset, row * track.max_spans
            borders = offsets[first : first + int(batch[f"{track.name}_num_spans"][row]) + 1].tolist()
            records = [values[a:b] for a, b in pairwise(borders)]
            where = f"{dataset.path}: track {track.name!r}"
            found.append(decode_all(dataset.codec(track.name), records, where) if records else [])
        batch[f"{track.name}_records"] = found


def weigh(track: TrackLayout, batch: Batch, samples: U64Array, _: I64Array) -> None:
    """Give labels in spans of a track of loss weights the numbers of their spans.

    Raises: FormatError for a number that is not finite.
    """
    of_labels = batch[track.factor]
    arrays = {name.removeprefix(f"{track.name}_"): batch.pop(name) for name in track.arrays(*of_labels.shape)}
    index = arrays["span_index"]
    rows, places = np.nonzero(index >= 0)
    found = arrays["values"][rows, index[rows, places]]
    if not np.isfinite(found).all():
        raise FormatError(
            f"sample {samples[rows[~np.isfinite(found)][0]]}: track {track.track}",
            "a weight that is NaN or Inf",
            "finite weights",
            f"rebuild the track {track.track}, or name these tokens under `exclude`",
        )
    of_labels[rows, places] = found


def multiply(
    factors: Sequence[str], of_members: npt.NDArray[np.float32], batch: Batch, samples: U64Array, members: I64Array
) -> None:
    """Make the loss weights the product of these arrays, of which the first has their name, and of what members have.

    Raises: FormatError for a product that is not finite.
    """
    weights = batch[LOSS_WEIGHT]
    with np.errstate(over="ignore", invalid="ignore"):
        for name in factors[1:]:
            weights *= batch.pop(name)
        weights *= of_members[members, None]
    bad = ~np.isfinite(weights).all(1)
    if bad.any():
        raise FormatError(
            f"sample {samples[bad][0]}: {LOSS_WEIGHT}",
            "a product of weights that is above float32",
            "a finite product",
            "lower the factors of outputs.loss_weight",
        )


class WithoutLoss:
    """Counts samples whose loss mask is all 0, in batches of many threads, and logs a warning at powers of ten."""

    def __init__(self, dp_rank: int | None) -> None:
        self.dp_rank, self.count = dp_rank, 0

    def add(self, batch: Batch, samples: U64Array, _: I64Array) -> None:
        """Those of a batch: a step."""
        for row in np.flatnonzero(~batch["loss_mask"].any(1)).tolist():
            self.count += 1  # in one step: threads change between two passes of a loop
            if self.count in _TELL:
                logger.warning(
                    "dp_rank %d: %d samples so far have a loss mask that is all 0, the last one is sample %d: "
                    "empty packs, documents of one token, excluded ones, or such whose tokens are all masked",
                    self.dp_rank, self.count, samples[row],
                )  # fmt: skip
