"""The phases of a mixture as their weights follow each other, and the arrays in which kernels read them."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from conceptloader.kernels import order as kernels
from conceptloader.order.ramp import Ramp, RampTree
from conceptloader.order.reference import PhaseOrder, blocks_key
from conceptloader.order.tree import Tree, built_tree


def order_phases(
    phases: Iterable[tuple[int, Mapping[str, int], Ramp | None]],
    names: Sequence[str],
    seed: int,
    block: int,
    drawn: Sequence[int] | None = None,
) -> list[PhaseOrder]:
    """`reference.order_phases`, with ramps: the weights of a phase that has one hold from its end on as a phase does.

    The next phase may cut a ramp short. The first phase has none; drawn: draws of every dataset before it, if any.
    """
    index = {name: k for k, name in enumerate(names)}
    given, result = list(phases), list[PhaseOrder]()
    earlier: tuple[list[str], Tree] | None = None
    for k, (start, weights, ramp) in enumerate(given):
        ordered = {name: weights[name] for name in sorted(weights)}
        later = list(ordered), built_tree(tuple(ordered.values()))
        steps: list[tuple[int, list[str], Tree]] = [(start, *later)]
        if ramp is not None:
            assert earlier is not None, "a ramp from nothing"
            both = RampTree.of(ramp, (earlier[1], later[1]), (earlier[0], later[0]))
            steps = [(start, sorted({*earlier[0], *ordered}), both), (start + ramp.samples, *later)]
        for begin, here, tree in steps:
            if begin == start or k + 1 == len(given) or begin < given[k + 1][0]:
                base = counts_in(result[-1], begin, block) if result else list(drawn or [0] * len(names))
                members = [index[name] for name in here]
                result.append(PhaseOrder(begin, ordered, members, tree, blocks_key(seed, begin), base))
        earlier = later
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
    segments: list[list[int]] = []
    roots: list[int] = []
    later: list[int] = []
    edges = [0]
    for phase in phases:
        offset, tree = len(left), phase.tree
        ramp = tree if isinstance(tree, RampTree) else None
        moved_to = [ramp.later_root if ramp else tree.root]
        for children, out in ((tree.left, left), (tree.right, right), ([tree.root], roots), (moved_to, later)):
            out += [child + offset if child >= 0 else ~phase.members[~child] for child in children]
        share += tree.share
        segments += ramp.words if ramp else []
        edges.append(len(segments))
    return kernels.Phases(
        starts=np.array([phase.start for phase in phases], np.uint64),
        keys=np.array([phase.key for phase in phases], np.uint64),
        roots=np.array(roots, np.int64),
        tree=kernels.Tree(np.array(left, np.int64), np.array(right, np.int64), np.array(share, np.uint64)),
        bases=np.array([phase.base for phase in phases], np.uint64),
        block=block,
        later=np.array(later, np.int64),
        edges=np.array(edges, np.int64),
        segments=np.array(segments, np.uint64).reshape(-1, kernels.SEGMENT),
    )
