"""Trees of SHA-256, the Merkle trees of RFC 6962: a root commits to a list, and a path of hashes to one entry of it."""

import hashlib
from collections.abc import Iterable, Sequence


def leaf(data: bytes) -> bytes:
    """The hash of an entry."""
    return hashlib.sha256(b"\0" + data).digest()


def node(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees."""
    return hashlib.sha256(b"\1" + left + right).digest()


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The root of the tree of these leaves, given as their hashes; of none, the hash of no byte.

    It keeps the roots of whole subtrees only.
    """
    whole: list[tuple[int, bytes]] = []  # (leaves, root), the numbers of leaves descending powers of two
    for found in leaves:
        size = 1
        while whole and whole[-1][0] == size:
            found, size = node(whole.pop()[1], found), 2 * size
        whole.append((size, found))
    roots = [root for _, root in whole]
    while len(roots) > 1:
        right = roots.pop()
        roots[-1] = node(roots[-1], right)
    return roots[0] if roots else hashlib.sha256().digest()


def path_of(leaves: Sequence[bytes], index: int) -> list[tuple[bool, bytes]]:
    """From a leaf up: (whether it is on the left, hash) of each subtree that is joined with the one of the leaf."""
    level, path = list(leaves), list[tuple[bool, bytes]]()
    while len(level) > 1:
        beside = index ^ 1
        if beside < len(level):
            path.append((beside < index, level[beside]))
        pairs = [node(*level[k : k + 2]) for k in range(0, len(level) - 1, 2)]
        level, index = pairs + level[len(level) & ~1 :], index // 2
    return path
