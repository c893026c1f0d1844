"""Digests of what was read: a number for a framework's own logging, equal where ranks see the same."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xxhash

from conceptloader.errors import ConfigError

DIGEST_BITS = 40


def batch_digest(batches: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> int:
    """Digest of a micro batch, or of several, such as those of a step: an integer below 2**40.

    It is the sum, modulo 2**40, of the xxh3-64 of each sample (its sample_index, dataset_id, input_ids and labels as
    little-endian int64), so that

    - tensor, pipeline and context parallel ranks of one data-parallel rank have equal digests (take it before the
      sequence is split), and so does a run that was resumed on other ranks;
    - the sum over data-parallel ranks, modulo 2**40, is that of the global batch, for any number of ranks. A float64
      holds such sums of up to 8192 ranks exactly, so that it survives an all-reduce and a log of floats.

    With `outputs.ignore_index` the labels that it replaces count as what they are then: another number.

    Args:
        batches: A micro batch, or several.

    Returns:
        An integer below 2**40.

    Raises:
        ConfigError: If a batch lacks sample_index or dataset_id.
    """
    total = 0
    for batch in [batches] if isinstance(batches, Mapping) else batches:
        for name in ("sample_index", "dataset_id"):
            if name not in batch:
                raise ConfigError(
                    f"outputs.{name}", "off, but a digest needs it", "an array in each batch", f"omit outputs.{name}"
                )
        columns = [np.asarray(batch[name], "<i8") for name in ("sample_index", "dataset_id", "input_ids", "labels")]
        for row in zip(*columns, strict=True):
            total += xxhash.xxh3_64_intdigest(b"".join(part.tobytes() for part in row))
    return total % (1 << DIGEST_BITS)
