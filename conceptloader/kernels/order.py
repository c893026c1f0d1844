"""Compiled twins of order/reference.py and tests/order/plain.py, for arrays of positions; each has its equal there.

All arithmetic is uint64. A literal without a type would turn numba's uint64 into int64 or float64.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from conceptloader.kernels.kernel import I64Array, Lowered, U64Array, inlined, inner, kernel

U64 = np.uint64

ZERO, ONE, HALF = U64(0), U64(1), U64(1 << 63)
GOLDEN, MIX_A, MIX_B = U64(0x9E3779B97F4A7C15), U64(0xBF58476D1CE4E5B9), U64(0x94D049BB133111EB)
GOLDEN2, GOLDEN4, GOLDEN6 = (U64(k * int(GOLDEN) % (1 << 64)) for k in (2, 4, 6))
S27, S30, S31, S32, S63 = U64(27), U64(30), U64(31), U64(32), U64(63)
TABLE_MAX = U64(1024)
NO_EPOCH = U64((1 << 64) - 1)


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
def unfeistel_many(positions: U64Array, n: U64, a: U64, bits: U64, key: U64, out: U64Array) -> None:
    for x in range(len(positions)):  # vectorized: no branch
        out[x] = undo_network(positions[x], a, bits, key)
    for x in range(len(positions)):
        if out[x] >= n:
            out[x] = unfeistel(out[x], n, a, bits, key)


class Tree(NamedTuple):
    """Of nodes: their children, ~leaf for a leaf, and the share of the left one."""

    left: I64Array
    right: I64Array
    share: U64Array


class Phases(NamedTuple):
    """Draws of phases: phase f begins at starts[f] and has its tree at roots[f].

    It continues the draws of bases[f], u64 [phases, datasets]. block: places of a mixture block.
    """

    starts: U64Array
    keys: U64Array
    roots: I64Array
    tree: Tree
    bases: Annotated[U64Array, 2]
    block: int


class Blocks(NamedTuple):
    """The mixture blocks of a phase: its key, tree and leaves, and places of a block."""

    key: U64
    root: np.int64
    tree: Tree
    leaves: int
    block: int


class Sizes(NamedTuple):
    """Of each dataset: its windows, its key, a and bits of its shuffle's shape, where its table begins."""

    windows: U64Array
    keys: U64Array
    a: U64Array
    bits: U64Array
    tables: I64Array


class KernelTables(NamedTuple):
    """What kernels find windows by: phases and sizes, where samples are passed over, with how many before and after.

    room: u64 that these work in (see scratch_of).
    """

    phases: Phases
    sizes: Sizes
    skip_at: U64Array
    skip_total: U64Array
    room: int


_U64, _I64 = np.zeros(0, U64), np.zeros(0, np.int64)
NO_TABLES = KernelTables(
    Phases(_U64, _U64, _I64, Tree(_I64, _I64, _U64), np.zeros((0, 0), U64), 1),
    Sizes(_U64, _U64, _U64, _U64, _I64),
    _U64,
    _U64,
    0,
)
"""Of no order."""


@inner
def tree_walk(j: U64, root: np.int64, tree: Tree) -> tuple[np.int64, U64]:
    left, right, share = tree
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


def scratch_of(block: int, datasets: int, tables: int = 0) -> int:
    """How many u64 kernels work in: for the places of a mixture block, four times, and for datasets, twice.

    If that is more: for datasets once and for the tables of small ones.
    """
    return max(4 * block + 2 * datasets, datasets + tables)


@inner
def fill_block(number: U64, blocks: Blocks, scratch: U64Array) -> None:
    """Write the leaves of all places of mixture block `number`, and their draws, into scratch[: 2 * block].

    After 4 * block there are, for each leaf, 0 before and after, and its next draw.
    """
    block = blocks.block
    leaves, draws = scratch[:block], scratch[block : 2 * block]
    order, strict, by_leaf = scratch[2 * block : 3 * block], scratch[3 * block : 4 * block], scratch[4 * block :]
    first = number * U64(block)
    for s in range(block):
        leaf, draw = tree_walk(first + U64(s), blocks.root, blocks.tree)
        strict[s] = U64(leaf)
        if by_leaf[2 * leaf] == ZERO:
            by_leaf[2 * leaf] = ONE
            by_leaf[2 * leaf + 1] = draw
    keyed_shuffle(order, mix64(blocks.key + mix64(number + GOLDEN)))
    for r in range(block):
        leaf = np.int64(strict[order[r]])
        leaves[r] = U64(leaf)
        draws[r] = by_leaf[2 * leaf + 1]
        by_leaf[2 * leaf + 1] += ONE
    for s in range(block):
        by_leaf[2 * np.int64(strict[s])] = ZERO


@kernel
def locate_many(positions: U64Array, datasets: I64Array, draws: U64Array, phases: Phases, scratch: U64Array) -> None:
    """(dataset, draw) of every position. scratch: see scratch_of."""
    starts, keys, roots, tree, bases, block = phases
    width = U64(block)
    for k in range(4 * block, 4 * block + 2 * bases.shape[1]):
        scratch[k] = ZERO
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
            leaf, draw = tree_walk(j, roots[phase], tree)
        else:
            number = j // width
            if phase != held_phase or number != held_block:
                fill_block(number, Blocks(keys[phase], roots[phase], tree, bases.shape[1], block), scratch)
                held_phase = phase
                held_block = number
            r = np.int64(j - number * width)
            leaf = np.int64(scratch[r])
            draw = scratch[block + r]
        datasets[x] = leaf
        draws[x] = bases[phase, leaf] + draw


@kernel
def windows_many(
    datasets: I64Array, draws: U64Array, epochs: U64Array, windows: U64Array, sizes: Sizes, scratch: U64Array
) -> None:
    """(epoch, window) of every draw.

    scratch: see scratch_of. Small datasets get a table of the epoch at hand, kept while it lasts.
    """
    counts, dataset_keys, shape_a, shape_bits, table_starts = sizes
    held, tables = scratch[: len(counts)], scratch[len(counts) :]
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


@inner
def divide_wide(high: U64, low: U64, divisor: U64) -> U64:
    """(high * 2**64 + low) // divisor, for high < divisor."""
    rest: U64 = high
    quotient: U64 = ZERO
    for _ in range(64):
        carry = rest >> S63
        rest = (rest << ONE) | (low >> S63)
        low <<= ONE
        quotient <<= ONE
        if carry == ONE or rest >= divisor:
            rest -= divisor
            quotient |= ONE
    return quotient


@kernel
def climb(draws: U64Array, divisors: U64Array, lower: U64Array, out: U64Array) -> None:
    """Positions in the strict sequence of draws of a leaf, from the leaf up to the root."""
    for x in range(len(draws)):
        d = draws[x]
        for level in range(len(divisors)):
            d = divide_wide(d, lower[level], divisors[level])
        out[x] = d


@kernel
def places_in_blocks(
    strict: U64Array, draws: U64Array, leaf: int, blocks: Blocks, scratch: U64Array, out: I64Array
) -> None:
    """Positions in the phase, inside of their permuted blocks, of draws at these positions of the strict sequence.

    scratch: see scratch_of.
    """
    block = blocks.block
    for k in range(4 * block, 4 * block + 2 * blocks.leaves):
        scratch[k] = ZERO
    width = U64(block)
    held = NO_EPOCH  # no block has this number, either
    for x in range(len(strict)):
        number = strict[x] // width
        if number != held:
            fill_block(number, blocks, scratch)
            held = number
        for r in range(block):
            if np.int64(scratch[r]) == leaf and scratch[block + r] == draws[x]:
                out[x] = np.int64(number) * block + r
                break
