"""Compile what loaders and builds need, or load it from the cache: for an installation, an image or a prologue."""

import numpy as np

from conceptloader.base.compiled import cache_directories
from conceptloader.batch.compiled import CompiledReader
from conceptloader.batch.layout import BatchLayout
from conceptloader.blend import Outputs
from conceptloader.ingest.rows.digits import parse_digits
from conceptloader.order.mixture import Mixture
from conceptloader.order.permutation import Permutation


def warm_up() -> list[str]:
    """Compile what is not in the cache yet. Returns: the directories of the cache, the one that is written to first."""
    none = np.zeros(0, np.uint64)
    for n in (10, 1 << 20):
        permutation = Permutation(n)
        permutation.inverse_many(permutation.forward_many(none))
        permutation.inverse(permutation.forward(0))
    order = Mixture([10, 1 << 20])
    order.sample_many(none)
    CompiledReader(order, [None, None], BatchLayout(seq_len=8, outputs=Outputs())).read(none)
    parse_digits(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    return cache_directories()
