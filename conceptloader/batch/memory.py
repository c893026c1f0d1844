"""Memory for batches: blocks that are used again once nobody can see them any more.

A fresh block of a few MB costs a page fault every 4 KiB, more than the reads that fill it.
"""

import sys
from collections import deque

import numpy as np
import numpy.typing as npt

Block = npt.NDArray[np.uint8]

_UNSEEN = 2  # references to a block that only `allocate` holds: its own name and getrefcount's argument


def fresh(size: int) -> Block:
    """A block of memory, not initialized."""
    return np.empty(size, np.uint8)


class Pool:
    """Blocks for one reader, at most `keep` of each size. Safe to use from many threads.

    numpy keeps a reference from every view to the array that owns the memory, and torch one to the array that a tensor
    was made from. So a block that is referred to by nobody else is free, and one that is not is never handed out.
    """

    def __init__(self, keep: int = 64) -> None:
        self._keep = keep
        self._blocks: dict[int, deque[Block]] = {}

    def allocate(self, size: int) -> Block:
        """A block of `size` bytes, not initialized."""
        blocks = self._blocks.setdefault(size, deque())
        for _ in range(len(blocks)):
            try:
                block = blocks.popleft()  # nobody else can find it now
            except IndexError:
                break
            free = sys.getrefcount(block) == _UNSEEN
            blocks.append(block)
            if free:
                return block
            del block
        block = np.empty(size, np.uint8)
        if len(blocks) < self._keep:
            blocks.append(block)
        return block
