"""Weights to a binary tree in which every node splits its stream between two children by rounding.

A leaf's count is then off its weight by at most 1/2 sample for every node v on its path below the root, each shrunk by
the leaf's share of v:  deviation <= 1/2 * sum over v of w_leaf / w_v,  at any prefix of a stream of any length.
A Huffman tree keeps this below 2 and the lookups short. Joining, at each step, the lightest node with the partner that
keeps the sum small usually comes near 1, so both are built and the better one is taken.

Part of the definition of order version 1, and frozen like reference.py.
"""

import bisect
import math
from dataclasses import dataclass, field


def went_left(j: int, p: int) -> int:
    """How many of a node's first j samples went to its left child, whose share is p / 2**64: round(j * share)."""
    return (j * p + (1 << 63)) >> 64


@dataclass(frozen=True)
class Tree:
    """A binary tree over leaves 0..n - 1. Node 0 is the root; a child is a node if >= 0, else leaf ~child.

    share[k] / 2**64 is the part of node k's stream that goes to left[k]. `deviation` bounds |count - weight * j| of
    every leaf at every prefix j.
    """

    left: list[int]
    right: list[int]
    share: list[int]
    paths: list[list[tuple[int, bool]]]  # per leaf, from the root: (node, went left)
    deviation: float

    @property
    def root(self) -> int:
        return 0 if self.left else -1

    def counts(self, j: int) -> list[int]:
        """How many of the first j samples each leaf got."""
        out = [0] * len(self.paths)
        stack = [(self.root, j)]
        while stack:
            node, count = stack.pop()
            if node < 0:
                out[~node] = count
            else:
                before = went_left(count, self.share[node])
                stack += [(self.left[node], before), (self.right[node], count - before)]
        return out


PARTNERS = 16  # how many of the next lightest nodes may become the lightest one's partner
LOOKAHEADS = (0.0, 1.5, 2.0, 2.5)  # guesses of the sum above a node in units of 1 / its weight; 0 makes a Huffman tree


@dataclass(frozen=True, order=True)
class _Node:
    """A subtree in the making; compares by weight, then age, so that sorted names give one tree."""

    weight: int
    age: int
    child: int = field(compare=False)
    critical: list[tuple[int, float]] = field(compare=False)  # leaves that may be the worst: (weight, sum so far)


def _critical(leaves: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Drop every leaf for which a heavier one is already worse: it can never catch up."""
    kept: list[tuple[int, float]] = []
    worst = -1.0
    for weight, above in sorted(leaves, reverse=True):
        if weight * above > worst:
            worst = weight * above
            kept.append((weight, above))
    return kept


def _partner(nodes: list[_Node], lookahead: float) -> int:
    """Index of the node to join with the lightest, nodes[0]."""
    if not lookahead or len(nodes) == 2:
        return 1
    lightest = nodes[0]
    best, best_value = 1, math.inf
    for index in range(1, min(PARTNERS + 1, len(nodes))):
        both = lightest.weight + nodes[index].weight
        value = max(
            weight * (above + 1 / node.weight + lookahead / both)
            for node in (lightest, nodes[index])
            for weight, above in node.critical
        )
        if value < best_value:
            best, best_value = index, value
    return best


def _join_all(weights: list[int], lookahead: float) -> Tree:
    nodes = sorted(_Node(weight, leaf, ~leaf, [(weight, 0.0)]) for leaf, weight in enumerate(weights))
    total = len(weights) - 1
    left, right, share = [0] * total, [0] * total, [0] * total
    for made in range(total):
        heavy = nodes.pop(_partner(nodes, lookahead))
        light = nodes.pop(0)
        child = total - 1 - made  # the last one made is the root
        both = light.weight + heavy.weight
        left[child], right[child] = heavy.child, light.child
        share[child] = ((heavy.weight << 65) + both) // (2 * both)  # heavy / both in units of 2**-64, rounded
        leaves = [(weight, above + 1 / node.weight) for node in (light, heavy) for weight, above in node.critical]
        bisect.insort(nodes, _Node(both, len(weights) + made, child, _critical(leaves)))
    deviation = max(weight * above for weight, above in nodes[0].critical) / 2
    return Tree(left, right, share, _paths(left, right, len(weights)), deviation)


def _paths(left: list[int], right: list[int], leaves: int) -> list[list[tuple[int, bool]]]:
    paths: list[list[tuple[int, bool]]] = [[] for _ in range(leaves)]
    stack: list[tuple[int, list[tuple[int, bool]]]] = [(0 if left else -1, [])]
    while stack:
        node, path = stack.pop()
        if node < 0:
            paths[~node] = path
        else:
            stack += [(left[node], [*path, (node, True)]), (right[node], [*path, (node, False)])]
    return paths


def build_tree(weights: list[int]) -> Tree:
    """The tree of exact weights with the smallest deviation among the candidates; the first of equals.

    Deterministic on every platform: integers, and IEEE doubles in a fixed order of operations.
    """
    return min((_join_all(weights, lookahead) for lookahead in LOOKAHEADS), key=lambda tree: tree.deviation)
