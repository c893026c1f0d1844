"""Keys and weights, exactly. The shuffle is in kernels/order.py (keyed_shuffle, feistel), the mixture in tree.py.

All of it stands in plain Python in tests/order/plain.py.

docs/order.md says the same without Python. Everything here is frozen as order version 1: a change of any constant or
line is a new order version, since running trainings rely on it, and the golden vectors in tests/order fail.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from conceptloader.base.hashing import derive_key
from conceptloader.order.tree import Tree

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the increment of splitmix64, spreads counters over 64 bits
MIX_A = 0xBF58476D1CE4E5B9  # multipliers of Stafford's mix 13, the finalizer of splitmix64
MIX_B = 0x94D049BB133111EB  # (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014)
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


# Permutations


def feistel_shape(n: int) -> tuple[int, int]:
    """(a, bits) with a * 2**bits >= n, close to square and less than 2**bits above n, so walks are rare.

    For n <= 2**63, a <= 2**32 and bits <= 31: a round fits 64-bit arithmetic without a wide product.
    """
    bits = (n - 1).bit_length() // 2
    return ((n - 1) >> bits) + 1, bits


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
