"""Compiled twins of reference.py and tree.py, for arrays of positions. Every function here has its equal there.

All arithmetic is uint64. A literal without a type would turn numba's uint64 into int64 or float64.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from conceptloader.base.compiled.kernel import Lowered, inlined, inner, kernel
from conceptloader.order import reference

U64 = np.uint64
U64Array = npt.NDArray[np.uint64]
I64Array = npt.NDArray[np.int64]

ZERO, ONE, HALF = U64(0), U64(1), U64(1 << 63)
GOLDEN, MIX_A, MIX_B = U64(reference.GOLDEN), U64(reference.MIX_A), U64(reference.MIX_B)
GOLDEN2, GOLDEN4, GOLDEN6 = (U64(k * reference.GOLDEN & reference.MASK) for k in (2, 4, 6))
S27, S30, S31, S32 = U64(27), U64(30), U64(31), U64(32)
TABLE_MAX = U64(reference.TABLE_MAX)
NO_EPOCH = U64(reference.MASK)


mulhi: Callable[[U64, U64], U64] = Lowered("mulhi")
"""High 64 bits of the 128-bit product of two uint64, for which numba has no name."""


@inner
def mix64(x: U64) -> U64:
    x = (x ^ (x >> S30)) * MIX_A
    x = (x ^ (x >> S27)) * MIX_B
    x ^= x >> S31
    return x


@kernel
def keyed_shuffle(items: U64Array, key: U64) -> None:
    """Fill `items` with the keyed permutation of range(len(items))."""
    n = len(items)
    for i in range(n):
        items[i] = U64(i)
    for i in range(n - 1, 0, -1):
        j = mulhi(mix64(key + U64(i) * GOLDEN), U64(i) + ONE)
        items[i], items[j] = items[j], items[i]


@inlined
def round_value(x: U64, key: U64) -> U64:
    x = (x + key) * MIX_A
    x ^= x >> S32
    x *= MIX_B
    x >>= S32
    return x


@inlined
def two_rounds(left: U64, right: U64, a: U64, top: U64, key: U64) -> tuple[U64, U64]:
    left += (round_value(right, key) * a) >> S32
    left = min(left, left - a)  # left mod a without a branch: the difference wraps around if left < a
    right ^= round_value(left, key + GOLDEN) >> top
    return left, right


@inlined
def undo_two_rounds(left: U64, right: U64, a: U64, top: U64, key: U64) -> tuple[U64, U64]:
    right ^= round_value(left, key + GOLDEN) >> top
    left += a - ((round_value(right, key) * a) >> S32)
    left = min(left, left - a)
    return left, right


@inlined
def network(i: U64, a: U64, bits: U64, key: U64) -> U64:
    """One pass; the rounds are written out, since LLVM vectorizes no loop within a loop."""
    left, right, top = i >> bits, i & ((ONE << bits) - ONE), S32 - bits
    left, right = two_rounds(left, right, a, top, key)
    left, right = two_rounds(left, right, a, top, key + GOLDEN2)
    left, right = two_rounds(left, right, a, top, key + GOLDEN4)
    left, right = two_rounds(left, right, a, top, key + GOLDEN6)
    joined: U64 = (left << bits) | right
    return joined


@inlined
def undo_network(j: U64, a: U64, bits: U64, key: U64) -> U64:
    left, right, top = j >> bits, j & ((ONE << bits) - ONE), S32 - bits
    left, right = undo_two_rounds(left, right, a, top, key + GOLDEN6)
    left, right = undo_two_rounds(left, right, a, top, key + GOLDEN4)
    left, right = undo_two_rounds(left, right, a, top, key + GOLDEN2)
    left, right = undo_two_rounds(left, right, a, top, key)
    joined: U64 = (left << bits) | right
    return joined


@kernel
def feistel(i: U64, n: U64, a: U64, bits: U64, key: U64) -> U64:
    i = network(i, a, bits, key)
    while i >= n:
        i = network(i, a, bits, key)
    return i


@kernel
def unfeistel(j: U64, n: U64, a: U64, bits: U64, key: U64) -> U64:
    j = undo_network(j, a, bits, key)
    while j >= n:
        j = undo_network(j, a, bits, key)
    return j


@kernel
def feistel_many(positions: U64Array, n: U64, a: U64, bits: U64, key: U64, out: U64Array) -> None:
    for x in range(len(positions)):  # vectorized: no branch
        out[x] = network(positions[x], a, bits, key)
    for x in range(len(positions)):
        if out[x] >= n:
            out[x] = feistel(out[x], n, a, bits, key)


@kernel
def unfeistel_many(positions: U64Array, n: U64, a: U64, bits: U64, key: U64, out: U64Array) -> None:
    for x in range(len(positions)):
        out[x] = undo_network(positions[x], a, bits, key)
    for x in range(len(positions)):
        if out[x] >= n:
            out[x] = unfeistel(out[x], n, a, bits, key)


@inner
def tree_walk(j: U64, root: np.int64, left: I64Array, right: I64Array, share: U64Array) -> tuple[np.int64, U64]:
    node = root
    while node >= 0:
        p = share[node]
        low = j * p
        before = mulhi(j, p) + (low >> U64(63))
        # went_left(j + 1): the product grows by p; the half that rounds is added first, so both carries are seen
        rounded = low + HALF
        if rounded + p < rounded:
            node, j = left[node], before
        else:
            node, j = right[node], j - before
    return ~node, j


class KernelTables(NamedTuple):
    """What kernels find windows by: arguments of locate_many and windows_many, the two arrays of Skips; room:
    what make_scratch is given for them."""

    phases: Any
    sizes: Any
    skip_at: U64Array
    skip_total: U64Array
    room: tuple[int, int, int]


_U64, _I64 = np.zeros(0, U64), np.zeros(0, np.int64)
NO_TABLES = KernelTables(
    (_U64, _U64, _I64, _I64, _I64, _U64, np.zeros((0, 0), U64), np.int64(1)),
    (_U64, _U64, _U64, _U64, _I64),
    _U64,
    _U64,
    (0, 0, 0),
)
"""Of no order, in the same types."""


def make_scratch(block: int, datasets: int, tables: int = 0) -> tuple[U64Array, U64Array, U64Array]:
    """What kernels work with, for one call at a time: by place in a mixture block [4, block], by dataset [3, datasets],
    and the tables of small datasets."""
    return np.empty((4, block), np.uint64), np.empty((3, datasets), np.uint64), np.empty(tables, np.uint64)


@inner
def fill_block(number: U64, key: U64, root: np.int64, tree: Any, scratch: Any) -> None:
    """Write leaf and draw of every place of mixture block `number` into the last two rows of scratch[0]. tree: (left,
    right, share); scratch: see make_scratch; `seen`, its row of datasets, is 0 before and after."""
    left, right, share = tree
    order, strict, leaves, draws = scratch[0][0], scratch[0][1], scratch[0][2], scratch[0][3]
    following, seen = scratch[1][0], scratch[1][1]
    block = len(leaves)
    first = number * U64(block)
    for s in range(block):
        leaf, draw = tree_walk(first + U64(s), root, left, right, share)
        strict[s] = U64(leaf)
        if seen[leaf] == ZERO:
            seen[leaf] = ONE
            following[leaf] = draw
    keyed_shuffle(order, mix64(key + mix64(number + GOLDEN)))
    for r in range(block):
        taken = strict[order[r]]
        leaves[r] = taken
        draws[r] = following[taken]
        following[taken] += ONE
    for s in range(block):
        seen[strict[s]] = ZERO


@kernel
def locate_many(positions: U64Array, datasets: I64Array, draws: U64Array, phases: Any, scratch: Any) -> None:
    """(dataset, draw) of every position. phases: (starts, keys, roots, left, right, share, bases, block); phase f has
    its tree at roots[f] and continues the draws of bases[f]. scratch: see make_scratch."""
    starts, keys, roots, left, right, share, bases, block = phases
    width = U64(block)
    leaves, block_draws, seen = scratch[0][2], scratch[0][3], scratch[1][1]
    for d in range(len(seen)):
        seen[d] = ZERO
    held_phase = np.int64(-1)
    held_block = ZERO
    phase = np.int64(0)
    for x in range(len(positions)):
        g = positions[x]
        while phase + 1 < len(starts) and g >= starts[phase + 1]:
            phase += 1
        while g < starts[phase]:
            phase -= 1
        j = g - starts[phase]
        if block == 1:
            leaf, draw = tree_walk(j, roots[phase], left, right, share)
        else:
            number = j // width
            if phase != held_phase or number != held_block:
                fill_block(number, keys[phase], roots[phase], (left, right, share), scratch)
                held_phase = phase
                held_block = number
            r = j - number * width
            leaf = np.int64(leaves[r])
            draw = block_draws[r]
        datasets[x] = leaf
        draws[x] = bases[phase, leaf] + draw


@kernel
def windows_many(
    datasets: I64Array, draws: U64Array, epochs: U64Array, windows: U64Array, sizes: Any, scratch: Any
) -> None:
    """(epoch, window) of every draw. sizes: (windows of each dataset, their keys, a and bits of their shapes, where
    their tables begin); scratch: see make_scratch. Small datasets get a table of the epoch at hand, kept while it
    lasts."""
    counts, dataset_keys, shape_a, shape_bits, table_starts = sizes
    held, tables = scratch[1][2], scratch[2]
    for d in range(len(held)):
        held[d] = NO_EPOCH
    for x in range(len(datasets)):
        d = datasets[x]
        n = counts[d]
        draw = draws[x]
        epoch = ZERO
        if draw >= n:
            epoch = draw // n
            draw -= epoch * n
        key = mix64(dataset_keys[d] + mix64(epoch + GOLDEN))
        if n <= TABLE_MAX:
            start = table_starts[d]
            table = tables[start : start + np.int64(n)]
            if held[d] != epoch:
                keyed_shuffle(table, key)
                held[d] = epoch
            windows[x] = table[draw]
        else:
            windows[x] = feistel(draw, n, shape_a[d], shape_bits[d], key)
        epochs[x] = epoch


def load() -> None:
    """Compile what many samples are found with, or load it."""
    locate_many(_U64, _I64, _U64, NO_TABLES.phases, make_scratch(*NO_TABLES.room))
    windows_many(_I64, _U64, _U64, _U64, NO_TABLES.sizes, make_scratch(*NO_TABLES.room))
