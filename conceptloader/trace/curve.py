"""How often documents are read by how good they are: a curve of epochs over the quantiles of a column."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from conceptloader.errors import ConfigError
from conceptloader.format.spec.columns import Ints

_EXPECTED = "QUANTILE:EPOCHS, ..., ascending quantiles from 0 to 1, epochs of 0 or more"
_FIX = 'pass --epochs "0.4:0, 1:7": the lower 40 % of the tokens never, from there on up to 7 times'


@dataclass(frozen=True)
class Curve:
    """Epochs at quantiles of the tokens, on a line between these and constant outside of them."""

    quantiles: tuple[float, ...]
    epochs: tuple[float, ...]

    @classmethod
    def read(cls, text: str) -> "Curve":
        """Raises: ConfigError for anything but QUANTILE:EPOCHS, ..."""
        try:
            points = [tuple(map(float, pair.split(":"))) for pair in text.split(",")]
            quantiles, epochs = zip(*points, strict=True)
        except ValueError:
            raise ConfigError("epochs", repr(text), _EXPECTED, _FIX) from None
        ascending = all(a < b for a, b in zip((-1, *quantiles), quantiles, strict=False))
        if not ascending or not 0 <= quantiles[0] <= quantiles[-1] <= 1 or not all(0 <= one < 1e6 for one in epochs):
            raise ConfigError("epochs", repr(text), _EXPECTED, _FIX)
        return cls(quantiles, epochs)

    def mean(self, low: float, high: float) -> float:
        """Over quantiles [low, high]."""
        inside = [q for q in self.quantiles if low < q < high]
        at = np.array([low, *inside, high])
        values = np.interp(at, self.quantiles, self.epochs)
        area = float(((values[1:] + values[:-1]) / 2 * np.diff(at)).sum())  # of trapezoids
        return area / (high - low) if high > low else float(values[0])


def bucketed(
    values: npt.NDArray[Any], tokens: Ints, buckets: int, curve: Curve
) -> tuple[npt.NDArray[Any], list[float]]:
    """Documents in buckets of about equally many tokens by ascending value, of which equal ones stay together.

    Args:
        values: Of each document, text of a number.
        tokens: Of each document.
        buckets: How many at most.
        curve: Of epochs.

    Returns:
        Names of buckets, "" for documents that are never read, and the epochs of each name, ascending.

    Raises:
        ConfigError: For a value that is no number.
    """
    try:
        numbers = values.astype(np.float64)
    except ValueError as error:
        raise ConfigError("by", str(error), "numbers", "pass --by COLUMN::DOUBLE, or omit --epochs") from None
    if np.isnan(numbers).any():
        raise ConfigError("by", "NaN", "numbers, or null for documents in no bucket", "pass --by of numbers")
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(tokens[order])
    # A document belongs where its middle lies; those of one value where the middle of all of them does.
    ascending = numbers[order]
    first = np.flatnonzero(np.append(True, ascending[1:] != ascending[:-1]))
    stops = np.append(ends[first[1:] - 1], ends[-1])
    middles = (np.append(0, stops[:-1]) + stops) / 2 / ends[-1]
    of_value = np.minimum((middles * buckets).astype(np.int64), buckets - 1)
    bucket = np.empty(len(numbers), np.int64)
    bucket[order] = np.repeat(of_value, np.diff(np.append(first, len(numbers))))
    shares = np.bincount(bucket, weights=tokens, minlength=buckets) / ends[-1]
    borders = np.append(0, np.cumsum(shares))
    epochs = [curve.mean(low, high) for low, high in itertools.pairwise(borders)]
    width = len(str(buckets))
    names = np.array([f"{k + 1:0{width}}" if epochs[k] else "" for k in range(buckets)])
    used = np.flatnonzero(shares).tolist()
    return names[bucket], [epochs[k] for k in used if epochs[k]]
