"""The inverse of the order for many windows at once: compiled twins of reference.draw_of and reference.position."""

from collections.abc import Sequence

import numpy as np

from conceptloader.kernels import order as kernels
from conceptloader.kernels.kernel import I64Array, U64Array
from conceptloader.order import reference


def draws_of(windows: U64Array, base: int, size: int, key: int) -> U64Array:
    """The draws of windows in the epoch with this key, whose first draw is `base`."""
    if size <= reference.TABLE_MAX:
        table = np.empty(size, np.uint64)
        kernels.keyed_shuffle(table, np.uint64(key))
        draws: U64Array = np.argsort(table).astype(np.uint64)[windows]
        draws += np.uint64(base)
        return draws
    out = np.empty_like(windows)
    a, bits = reference.feistel_shape(size)
    kernels.unfeistel_many(windows, np.uint64(size), np.uint64(a), np.uint64(bits), np.uint64(key), out)
    out += np.uint64(base)
    return out


def positions(phases: Sequence[reference.PhaseOrder], block: int, dataset: int, draws: U64Array) -> I64Array:
    """Global samples of the draws of a dataset; -1 where it had left before."""
    found = np.full(len(draws), -1, np.int64)
    bases = np.array([phase.base[dataset] for phase in phases], np.uint64)
    number = np.searchsorted(bases, draws, side="right") - 1
    for k in np.unique(number).tolist():
        if dataset in phases[k].members:
            chosen = number == k
            found[chosen] = _in_phase(phases[k], block, dataset, draws[chosen] - bases[k])
    return found


def _in_phase(phase: reference.PhaseOrder, block: int, dataset: int, draws: U64Array) -> I64Array:
    leaf, tree = phase.members.index(dataset), phase.tree
    strict = np.empty_like(draws)
    path = [(tree.share[node], is_left) for node, is_left in reversed(tree.paths[leaf])]
    divisors = np.array([share if is_left else (1 << 64) - share for share, is_left in path], np.uint64)
    lower = np.array([(1 << 63) - is_left for _, is_left in path], np.uint64)
    kernels.climb(draws, divisors, lower, strict)
    # Samples of one block are found together; in order, each block is made once.
    order = np.argsort(strict, kind="stable")
    places = np.empty(len(draws), np.int64)
    arrays = np.array(tree.left, np.int64), np.array(tree.right, np.int64), np.array(tree.share, np.uint64)
    leaves, nodes = len(phase.members), kernels.Tree(*arrays)
    blocks = kernels.Blocks(np.uint64(phase.key), np.int64(tree.root), nodes, leaves, block)
    scratch = np.empty(kernels.scratch_of(block, leaves), np.uint64)
    kernels.places_in_blocks(strict[order], draws[order], leaf, blocks, scratch, places)
    found = np.empty(len(draws), np.int64)
    found[order] = places
    return found + phase.start
