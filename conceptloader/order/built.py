"""A phase whose tree is built: its samples by dataset, there and back, for many at once by kernels.

Compiled twins of what tests/order/plain.py does with a PhaseOrder.
"""

import threading
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from conceptloader.base.forks import hold_while_forking
from conceptloader.kernels import order as kernels
from conceptloader.kernels.kernel import I64Array, U64Array
from conceptloader.order import reference
from conceptloader.order.reference import PhaseOrder
from conceptloader.order.tree import Tree, build_tree

TREES = 64
"""That stay built: of all steps of a ramp."""

_tree = lru_cache(maxsize=TREES)(lambda weights: build_tree(list(weights)))
_building = threading.Condition(threading.RLock())
hold_while_forking(_building)


def built_tree(weights: tuple[int, ...]) -> Tree:
    """`build_tree`, remembered. Not to be changed.

    Of threads that reach a phase together one builds, and the others wait: they would only share the processor.
    """
    with _building:
        return _tree(weights)


def counts_in(phase: PhaseOrder, g: int, block: int) -> list[int]:
    """Draws of every dataset before global sample g of a phase: kernels fill the block that g cuts."""
    rest = (g - phase.start) % block
    counts = phase.counts(g - rest)
    if rest:
        places = np.arange(g - rest, g, dtype=np.uint64)
        datasets, draws = np.empty(rest, np.int64), np.empty(rest, np.uint64)
        scratch = np.empty(kernels.scratch_of(block, len(counts)), np.uint64)
        kernels.locate_many(places, datasets, draws, phase_arrays(phase, block), scratch)
        counts = (counts + np.bincount(datasets, minlength=len(counts))).tolist()
    return counts


def phase_arrays(phase: PhaseOrder, block: int) -> kernels.Phases:
    """One of them; kernels do not walk Python objects."""
    tree = phase.tree
    left, right, roots = (
        np.array([child if child >= 0 else ~phase.members[~child] for child in children], np.int64)
        for children in (tree.left, tree.right, [tree.root])
    )
    return kernels.Phases(
        starts=np.array([phase.start], np.uint64),
        keys=np.array([phase.key], np.uint64),
        roots=roots,
        tree=kernels.Tree(left, right, np.array(tree.share, np.uint64)),
        bases=np.array([phase.base], np.uint64),
        block=block,
    )


def joined(phases: Sequence[kernels.Phases]) -> kernels.Phases:
    """As one, in this sequence."""
    nodes = np.cumsum([0, *(len(phase.tree.share) for phase in phases)])

    def moved(arrays: list[I64Array]) -> I64Array:
        return np.concatenate([np.where(a >= 0, a + first, a) for a, first in zip(arrays, nodes, strict=False)])

    return kernels.Phases(
        starts=np.concatenate([phase.starts for phase in phases]),
        keys=np.concatenate([phase.keys for phase in phases]),
        roots=moved([phase.roots for phase in phases]),
        tree=kernels.Tree(
            moved([phase.tree.left for phase in phases]),
            moved([phase.tree.right for phase in phases]),
            np.concatenate([phase.tree.share for phase in phases]),
        ),
        bases=np.concatenate([phase.bases for phase in phases]),
        block=phases[0].block,
    )


def positions_in(phase: PhaseOrder, block: int, dataset: int, draws: U64Array) -> I64Array:
    """Global samples of draws of a dataset, counted from the phase on; -1 where it has none of them."""
    if dataset not in phase.members:
        return np.full(len(draws), -1, np.int64)
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
