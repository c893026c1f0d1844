"""Keys, permutations and weights in plain Python: with tree.py and tests/order/plain.py the definition of the order.

docs/order.md says the same without Python. Everything here is frozen as order version 1: a change of any constant or
line is a new order version, since running trainings rely on it, and the golden vectors in tests/order fail.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from conceptloader.base.hashing import derive_key
from conceptloader.order.tree import Tree

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the increment of splitmix64, spreads counters over 64 bits
MIX_A = 0xBF58476D1CE4E5B9  # multipliers of Stafford's mix 13, the finalizer of splitmix64
MIX_B = 0x94D049BB133111EB  # (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014)
ROUNDS = 8
TABLE_MAX = 1024  # up to this n the permutation is an exact keyed table


# Keys


def mix64(x: int) -> int:
    """A bijection of range(2**64) in which every input bit moves every output bit (splitmix64's finalizer)."""
    x = ((x ^ (x >> 30)) * MIX_A) & MASK
    x = ((x ^ (x >> 27)) * MIX_B) & MASK
    return x ^ (x >> 31)


def dataset_key(seed: int, name: str) -> int:
    return derive_key(seed, "window order", name)


def blocks_key(seed: int, phase_start: int) -> int:
    return derive_key(seed, "mixture block", phase_start)


def epoch_key(key: int, number: int) -> int:
    """The key of one epoch of a dataset, or of one block of a phase, from the dataset's or the phase's key."""
    return mix64((key + mix64((number + GOLDEN) & MASK)) & MASK)


def sample_random(seed: int, sample: int) -> int:
    """A number in [0, 2**63) for the trainer's sample `sample`, independent of what is read for it."""
    return epoch_key(derive_key(seed, "sample random"), sample) >> 1


# Permutations


def keyed_shuffle(n: int, key: int) -> list[int]:
    """Fisher-Yates with a counter-based generator: every permutation of range(n) is equally likely over the keys."""
    items = list(range(n))
    for i in range(n - 1, 0, -1):
        j = (mix64((key + i * GOLDEN) & MASK) * (i + 1)) >> 64
        items[i], items[j] = items[j], items[i]
    return items


@lru_cache(maxsize=8)
def shuffle_table(n: int, key: int) -> tuple[int, ...]:
    """`keyed_shuffle`, remembered: the windows of an epoch are asked for one by one."""
    return tuple(keyed_shuffle(n, key))


def feistel_shape(n: int) -> tuple[int, int]:
    """(a, bits) with a * 2**bits >= n, close to square and less than 2**bits above n, so walks are rare.

    For n <= 2**63, a <= 2**32 and bits <= 31: a round fits 64-bit arithmetic without a wide product.
    """
    bits = (n - 1).bit_length() // 2
    return ((n - 1) >> bits) + 1, bits


def round_value(x: int, key: int) -> int:
    """The round function: the high 32 bits of a keyed 64-bit multiply-xorshift-multiply."""
    x = ((x + key) * MIX_A) & MASK
    return (((x ^ (x >> 32)) * MIX_B) & MASK) >> 32


def permute(i: int, n: int, key: int) -> int:
    """Where position i goes under the permutation of range(n) with this 64-bit key.

    n <= TABLE_MAX: a keyed shuffle. Above: an alternating unbalanced Feistel network over range(a) x range(2**bits),
    walked until it is back in range(n) (Black, Rogaway: Ciphers with arbitrary finite domains, CT-RSA 2002).
    The public `Permutation(n, key)` is this with mix64(key), so that small keys may be used there; a key of this file
    is a hash already and enters as it is.
    """
    if n <= TABLE_MAX:
        return shuffle_table(n, key)[i]
    a, bits = feistel_shape(n)
    while True:
        left, right = i >> bits, i & ((1 << bits) - 1)
        for r in range(0, ROUNDS, 2):
            left = (left + ((round_value(right, (key + r * GOLDEN) & MASK) * a) >> 32)) % a
            right ^= round_value(left, (key + (r + 1) * GOLDEN) & MASK) >> (32 - bits)
        i = (left << bits) | right
        if i < n:
            return i


def unpermute(j: int, n: int, key: int) -> int:
    """The inverse of `permute`."""
    if n <= TABLE_MAX:
        return shuffle_table(n, key).index(j)
    a, bits = feistel_shape(n)
    while True:
        left, right = j >> bits, j & ((1 << bits) - 1)
        for r in range(ROUNDS - 2, -1, -2):
            right ^= round_value(left, (key + (r + 1) * GOLDEN) & MASK) >> (32 - bits)
            left = (left - ((round_value(right, (key + r * GOLDEN) & MASK) * a) >> 32)) % a
        j = (left << bits) | right
        if j < n:
            return j


# Weights


def exact_weight(weight: float | Fraction) -> Fraction:
    """A float counts as the decimal number it prints as: the shortest one that reads back as the same float."""
    return Fraction(repr(float(weight)) if isinstance(weight, float) else weight)


def smallest_integers(weights: Mapping[str, Fraction]) -> dict[str, int]:
    """The smallest integers in these proportions, the names in order of code points."""
    unit = math.lcm(*(weight.denominator for weight in weights.values()))
    scaled = {name: int(weights[name] * unit) for name in sorted(weights)}
    common = math.gcd(*scaled.values())
    return {name: value // common for name, value in scaled.items()}


# Phases and blocks


@dataclass(frozen=True)
class PhaseOrder:
    """One phase of a mixture: leaf k of its tree is dataset members[k] of the mixture."""

    start: int
    weights: dict[str, int]
    members: list[int]
    tree: Tree
    key: int
    base: list[int]  # draws of every dataset before the phase

    def counts(self, g: int) -> list[int]:
        """Draws of every dataset before global sample g of this phase, the first of a block."""
        counts = list(self.base)
        for member, count in zip(self.members, self.tree.counts(g - self.start), strict=True):
            counts[member] += count
        return counts
