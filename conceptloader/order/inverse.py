"""The inverse of the order for many windows at once: compiled twins of reference.draw_of and reference.position."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from conceptloader.base.compiled.code import inner
from conceptloader.base.compiled.kernel import kernel
from conceptloader.order import kernels, reference
from conceptloader.order.kernels import HALF, ONE, ZERO, I64Array, U64Array

_TOP = np.uint64(63)


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
    path = [(tree.share[node], is_left) for node, is_left in reversed(tree.paths[leaf])]
    divisors = np.array([share if is_left else (1 << 64) - share for share, is_left in path], np.uint64)
    lower = np.array([int(HALF) - is_left for _, is_left in path], np.uint64)
    strict = np.empty_like(draws)
    climb(draws, divisors, lower, strict)
    # Samples of one block are found together; in order, each block is made once.
    order = np.argsort(strict, kind="stable")
    places = np.empty(len(draws), np.int64)
    arrays = np.array(tree.left, np.int64), np.array(tree.right, np.int64), np.array(tree.share, np.uint64)
    rooted, scratch = (np.int64(tree.root), arrays), np.empty(kernels.scratch_of(block, len(phase.members)), np.uint64)
    places_in_blocks(strict[order], draws[order], leaf, np.uint64(phase.key), rooted, block, scratch, places)
    found = np.empty(len(draws), np.int64)
    found[order] = places
    return found + phase.start


@inner
def divide_wide(high: np.uint64, low: np.uint64, divisor: np.uint64) -> np.uint64:
    """(high * 2**64 + low) // divisor, for high < divisor."""
    rest: np.uint64 = high
    quotient: np.uint64 = ZERO
    for _ in range(64):
        carry = rest >> _TOP
        rest = (rest << ONE) | (low >> _TOP)
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
    strict: U64Array,
    draws: U64Array,
    leaf: int,
    key: np.uint64,
    rooted: tuple[np.int64, tuple[I64Array, I64Array, U64Array]],
    block: int,
    scratch: U64Array,
    out: npt.NDArray[np.int64],
) -> None:
    """Positions in the phase, inside of their permuted blocks, of draws at these positions of the strict sequence.
    rooted: the root of a tree, and the tree; scratch: see scratch_of."""
    root, tree = rooted
    for k in range(4 * block, 4 * block + 2 * (len(tree[0]) + 1)):
        scratch[k] = ZERO
    width = np.uint64(block)
    held = np.uint64(0xFFFFFFFFFFFFFFFF)
    for x in range(len(strict)):
        number = strict[x] // width
        if number != held:
            kernels.fill_block(number, key, root, tree, block, scratch)
            held = number
        for r in range(block):
            if np.int64(scratch[r]) == leaf and scratch[block + r] == draws[x]:
                out[x] = np.int64(number) * block + r
                break
