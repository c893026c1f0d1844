"""Compiled code ahead of time: for what must not wait for a compiler later on."""

import numpy as np

from conceptloader.base.lazy import forks_wait
from conceptloader.batch.compiled import CompiledReader
from conceptloader.batch.layout import BatchLayout
from conceptloader.blend import Outputs
from conceptloader.order.mixture import Mixture
from conceptloader.order.permutation import Permutation, load_kernels


def load_engine(packs: bool = False) -> None:
    """Load what reads batches, or compile it, now. packs: what reads packs as well."""
    reader = CompiledReader(Mixture([1]), [None], BatchLayout(seq_len=8, outputs=Outputs()))
    with forks_wait:  # in here nothing waits for another lock, which a fork may hold while it waits for this one
        load_kernels()
        reader.load(packs)


def warm_up() -> list[str]:
    """Compile all that is not in the cache yet, for an installation, an image or a prologue. Returns: the directories
    of the cache, the one that is written to first."""
    from conceptloader.base.compiled.cache import cache_directories
    from conceptloader.ingest.rows.digits import parse_digits

    load_engine(packs=True)
    permutation, none = Permutation(1 << 20), np.zeros(0, np.uint64)
    permutation.inverse_many(permutation.forward_many(none))
    permutation.inverse(permutation.forward(0))
    Mixture([2, 2]).indices_of_windows(0, 0, [0])
    parse_digits(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    return cache_directories()
