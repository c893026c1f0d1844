"""Which window is sample t: docs/order.md, line by line, as slowly as it is written there.

Nothing of the package is imported, and nothing is computed in closed form that can be counted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from hashlib import blake2b
from itertools import pairwise
from math import gcd, lcm

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_A, MIX_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
Weights = Mapping[str, int | float]


def mix64(x: int) -> int:
    x = (x ^ (x >> 30)) * MIX_A & MASK
    x = (x ^ (x >> 27)) * MIX_B & MASK
    return x ^ (x >> 31)


def epoch_key(key: int, number: int) -> int:
    return mix64((key + mix64((number + GOLDEN) & MASK)) & MASK)


def derive_key(*parts: int | str) -> int:
    data = b""
    for part in parts:
        text = part.encode() if isinstance(part, str) else str(part).encode()
        data += (b"s" if isinstance(part, str) else b"i") + len(text).to_bytes(8, "little") + text
    return int.from_bytes(blake2b(data, digest_size=8, person=b"conceptloader").digest(), "little")


def sample_random(seed: int, t: int) -> int:
    return epoch_key(derive_key(seed, "sample random"), t) // 2


@cache
def keyed_shuffle(n: int, key: int) -> list[int]:
    items = list(range(n))
    for i in range(n - 1, 0, -1):
        j = mix64((key + i * GOLDEN) & MASK) * (i + 1) >> 64
        items[i], items[j] = items[j], items[i]
    return items


def permute(i: int, n: int, key: int) -> int:
    if n <= 1024:
        return keyed_shuffle(n, key)[i]
    bits = (n - 1).bit_length() // 2
    a = ((n - 1) >> bits) + 1

    def scramble(x: int, r: int) -> int:
        x = (x + key + r * GOLDEN) * MIX_A & MASK
        return (x ^ (x >> 32)) * MIX_B % 2**64 >> 32

    while True:
        left, right = i >> bits, i % 2**bits
        for r in (0, 2, 4, 6):
            left = (left + (scramble(right, r) * a >> 32)) % a
            right ^= scramble(left, r + 1) >> (32 - bits)
        i = left * 2**bits + right
        if i < n:
            return i


class Tree:
    """How the samples of a phase are dealt out to its datasets, by name, before they are permuted in blocks."""

    def __init__(self, weights: Weights) -> None:
        exact = [Fraction(repr(w) if isinstance(w, float) else w) for w in weights.values()]
        whole = [int(w * lcm(*(w.denominator for w in exact))) for w in exact]
        by_name = dict(zip(weights, whole, strict=True))
        self.names = sorted(by_name)
        ints = [by_name[name] // gcd(*whole) for name in self.names]
        self.left, self.right, self.p = min((make_tree(ints, x) for x in (0, 1.5, 2, 2.5)), key=lambda t: t[0])[1:]

    def went_left(self, v: int, j: int) -> int:
        return j * self.p[v] + 2**63 >> 64

    def locate(self, j: int) -> tuple[str, int]:
        v = 0 if self.left else ~0
        while v >= 0:
            before = self.went_left(v, j)
            j, v = (before, self.left[v]) if self.went_left(v, j + 1) > before else (j - before, self.right[v])
        return self.names[~v], j


Critical = list[tuple[int, float]]


def make_tree(weights: Sequence[int], lookahead: float) -> tuple[float, list[int], list[int], list[int]]:
    n = len(weights)
    left, right, p = [0] * (n - 1), [0] * (n - 1), [0] * (n - 1)
    nodes: list[tuple[int, int, int, Critical]] = [(w, k, ~k, [(w, 0.0)]) for k, w in enumerate(weights)]

    def joined(k: int) -> Critical:
        return [(w, above + 1 / node[0]) for node in (nodes[0], nodes[k]) for w, above in node[3]]

    for made in range(n - 1):
        nodes.sort(key=lambda node: node[:2])
        k = 1
        if lookahead and len(nodes) > 2:
            values = {
                j: max(w * (above + lookahead / (nodes[0][0] + nodes[j][0])) for w, above in joined(j))
                for j in range(1, min(17, len(nodes)))
            }
            k = min(values, key=lambda j: values[j])
        leaves: Critical = []
        for w, above in sorted(joined(k), reverse=True):
            if not leaves or w * above > leaves[-1][0] * leaves[-1][1]:
                leaves.append((w, above))
        heavy, light = nodes.pop(k), nodes.pop(0)
        both, v = light[0] + heavy[0], n - 2 - made
        left[v], right[v] = heavy[2], light[2]
        p[v] = (heavy[0] * 2**65 + both) // (2 * both)
        nodes.append((both, n + made, v, leaves))
    return max(w * above for w, above in nodes[0][3]) / 2, left, right, p


@dataclass
class Phase:
    start: int
    tree: Tree
    key: int
    base: Counter[str] = field(default_factory=Counter)
    made: dict[int, list[tuple[str, int]]] = field(default_factory=dict)

    def block(self, b: int, size: int) -> list[tuple[str, int]]:
        """(dataset, draw) of the samples of its block b: the choices are permuted, the draws stay in their sequence."""
        if b not in self.made:
            strict = [self.tree.locate(b * size + s) for s in range(size)]
            drawn = dict(reversed(strict))
            self.made[b] = []
            for s in keyed_shuffle(size, epoch_key(self.key, b)):
                name = strict[s][0]
                self.made[b].append((name, drawn[name]))
                drawn[name] += 1
        return self.made[b]


@dataclass
class Order:
    """sizes: windows (or packs, documents) of each dataset."""

    seed: int
    block: int
    sizes: Mapping[str, int]
    phases: Sequence[tuple[int, Weights]]
    skips: Sequence[tuple[int, int]] = ()

    def global_sample(self, t: int) -> int:
        return t + sum(count for at, count in self.skips if at <= t)

    def locate(self, t: int) -> tuple[str, int, int]:
        """(dataset, epoch, window) of the trainer's sample t."""
        name, draw = locate(self.global_sample(t), self._phases, self.block)
        n = self.sizes[name]
        key = epoch_key(derive_key(self.seed, "window order", name), draw // n)
        return name, draw // n, permute(draw % n, n, key)

    @cached_property
    def _phases(self) -> list[Phase]:
        """Draws go on where the phases before left them: those are counted, one by one."""
        phases = [Phase(s, Tree(w), derive_key(self.seed, "mixture block", s)) for s, w in self.phases]
        for before, phase in pairwise(phases):
            drawn = Counter(locate(g, [before], self.block)[0] for g in range(before.start, phase.start))
            phase.base = before.base + drawn
        return phases


def locate(g: int, phases: Sequence[Phase], block: int) -> tuple[str, int]:
    """(dataset, draw) of global sample g."""
    phase = [phase for phase in phases if phase.start <= g][-1]
    name, draw = phase.block((g - phase.start) // block, block)[(g - phase.start) % block]
    return name, phase.base[name] + draw
