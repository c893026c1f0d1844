"""Phases whose trees are built, and the arrays in which kernels read them."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from conceptloader.kernels import order as kernels
from conceptloader.order.reference import PhaseOrder, blocks_key
from conceptloader.order.tree import built_tree


def order_phases(
    phases: Iterable[tuple[int, Mapping[str, int]]],
    names: Sequence[str],
    seed: int,
    block: int,
    drawn: Sequence[int] | None = None,
) -> list[PhaseOrder]:
    """`reference.order_phases`, by kernels. drawn: draws of every dataset before the first phase, if any."""
    index = {name: k for k, name in enumerate(names)}
    result = list[PhaseOrder]()
    for start, weights in phases:
        ordered = {name: weights[name] for name in sorted(weights)}
        base = counts_in(result[-1], start, block) if result else list(drawn or [0] * len(names))
        members, tree = [index[name] for name in ordered], built_tree(tuple(ordered.values()))
        result.append(PhaseOrder(start, ordered, members, tree, blocks_key(seed, start), base))
    return result


def counts_in(phase: PhaseOrder, g: int, block: int) -> list[int]:
    """`phase.counts`: of the block that g cuts, kernels fill the places."""
    rest = (g - phase.start) % block
    counts = phase.counts(g - rest, block)
    if rest:
        places = np.arange(g - rest, g, dtype=np.uint64)
        datasets, draws = np.empty(rest, np.int64), np.empty(rest, np.uint64)
        scratch = np.empty(kernels.scratch_of(block, len(counts)), np.uint64)
        kernels.locate_many(places, datasets, draws, phase_arrays([phase], block), scratch)
        counts = (counts + np.bincount(datasets, minlength=len(counts))).tolist()
    return counts


def phase_arrays(phases: Sequence[PhaseOrder], block: int) -> kernels.Phases:
    """All of them; kernels do not walk Python objects."""
    left: list[int] = []
    right: list[int] = []
    share: list[int] = []
    roots: list[int] = []
    for phase in phases:
        offset, tree = len(left), phase.tree
        for children, out in ((tree.left, left), (tree.right, right), ([tree.root], roots)):
            out += [child + offset if child >= 0 else ~phase.members[~child] for child in children]
        share += tree.share
    return kernels.Phases(
        starts=np.array([phase.start for phase in phases], np.uint64),
        keys=np.array([phase.key for phase in phases], np.uint64),
        roots=np.array(roots, np.int64),
        tree=kernels.Tree(np.array(left, np.int64), np.array(right, np.int64), np.array(share, np.uint64)),
        bases=np.array([phase.base for phase in phases], np.uint64),
        block=block,
    )
