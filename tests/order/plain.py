"""Which window is sample t: docs/order.md and docs/mixtures.md to the last bit, as plain as they are, and as slow."""

from fractions import Fraction
from hashlib import blake2b
from math import gcd, inf, lcm, pi, sin

GOLDEN = 0x9E3779B97F4A7C15
WORD = 2**64


def mix64(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def epoch_key(key, number):
    return mix64((key + mix64((number + GOLDEN) % WORD)) % WORD)


def derive_key(*parts):
    given = b""
    for part in parts:
        text = str(part).encode()
        given += (b"s" if isinstance(part, str) else b"i") + len(text).to_bytes(8, "little") + text
    return int.from_bytes(blake2b(given, digest_size=8, person=b"conceptloader").digest(), "little")


def sample_random(seed, t):
    return epoch_key(derive_key(seed, "sample random"), t) // 2


def keyed_shuffle(n, key):
    items = list(range(n))
    for i in range(n - 1, 0, -1):
        j = mix64((key + i * GOLDEN) % WORD) * (i + 1) >> 64
        items[i], items[j] = items[j], items[i]
    return items


def permute(i, n, key):
    if n <= 1024:
        return keyed_shuffle(n, key)[i]
    bits = (n - 1).bit_length() // 2
    a = ((n - 1) >> bits) + 1

    def scramble(x, r):
        x = (x + (key + r * GOLDEN)) * 0xBF58476D1CE4E5B9 % WORD
        return (x ^ (x >> 32)) * 0x94D049BB133111EB % WORD >> 32

    while True:
        left, right = i >> bits, i % 2**bits
        for r in (0, 2, 4, 6):
            left = (left + (scramble(right, r) * a >> 32)) % a
            right ^= scramble(left, r + 1) >> (32 - bits)
        i = left * 2**bits + right
        if i < n:
            return i


def smallest_integers(weights):
    """In the order of their names. A float is the decimal number that it prints as."""
    exact = {name: Fraction(repr(w) if isinstance(w, float) else w) for name, w in sorted(weights.items())}
    whole = lcm(*(w.denominator for w in exact.values()))
    most = gcd(*(int(w * whole) for w in exact.values()))
    return {name: int(w * whole) // most for name, w in exact.items()}


def steps(rule, first=0):
    """The first sample of each step and that of the next, of a trainer that begins at the sample `first`."""
    while True:
        size = [size for begin, size in rule if begin <= first][-1]
        yield first, first + size
        first += size


class Tree:
    """children: of node v, left and right, `~k` for leaf k."""

    def __init__(self, weights, lookahead):
        n = len(weights)
        self.children, self.share, self.leaf = [(0, 0)] * (n - 1), [0] * (n - 1), n == 1
        nodes = [(w, k, ~k, [(w, 0.0)]) for k, w in enumerate(weights)]
        for made in range(n - 1):
            nodes.sort(key=lambda node: node[:2])
            light, heavy = nodes[0], nodes[partner(nodes, lookahead)]
            nodes = [node for node in nodes if node not in (light, heavy)]
            both, v = light[0] + heavy[0], n - 2 - made
            self.children[v] = heavy[2], light[2]
            self.share[v] = (heavy[0] * 2**65 + both) // (2 * both)
            leaves = [(w, above + float(Fraction(1, x[0]))) for x in (light, heavy) for w, above in x[3]]
            nodes.append((both, n + made, v, critical(leaves)))
        self.deviation = max(w * above for w, above in nodes[0][3]) / 2

    def locate(self, j):
        """(leaf, how many of it came before)"""
        v = ~0 if self.leaf else 0
        while v >= 0:
            before, after = ((k * self.share[v] + 2**63) >> 64 for k in (j, j + 1))
            j, v = (before, self.children[v][0]) if after > before else (j - before, self.children[v][1])
        return ~v, j


def critical(leaves):
    kept, worst = [], -1.0
    for w, above in sorted(leaves, reverse=True):
        if w * above > worst:
            worst = w * above
            kept.append((w, above))
    return kept


def partner(nodes, lookahead):
    if lookahead == 0 or len(nodes) == 2:
        return 1
    best, least = 1, inf
    for k in range(1, min(17, len(nodes))):
        both = nodes[0][0] + nodes[k][0]
        pairs = [(w, above + float(Fraction(1, x[0]))) for x in (nodes[0], nodes[k]) for w, above in x[3]]
        value = max(w * (above + lookahead / both) for w, above in pairs)
        if value < least:
            best, least = k, value
    return best


def ramp(start, samples, shape, old, new):
    """The phases of a ramp from `old` to `new`."""
    n = min(63, samples)
    before, after = ({name: Fraction(w, sum(ws.values())) for name, w in ws.items()}
                     for ws in (smallest_integers(old), smallest_integers(new)))  # fmt: skip
    for k in range(n):
        mean = (2 * k + 1) / (2 * n)
        if shape == "cosine":
            mean = 0.5 - n / (2 * pi) * (sin(pi * (k + 1) / n) - sin(pi * k / n))
        x = Fraction(round(mean * 2**20), 2**20)
        shares = {m: (1 - x) * before.get(m, 0) + x * after.get(m, 0) for m in {*before, *after}}
        yield start + k * samples // n, {m: max(1, round(share * 2**32)) for m, share in shares.items() if share}
    yield start + samples, new


class Order:
    """sizes: windows (or packs, documents) of each dataset. phases: (from a global sample on, weights), from the first
    sample that is decided here.
    drawn: what each dataset has drawn before. skips: (at, count)."""

    def __init__(self, seed, block, sizes, phases, skips=(), drawn=None):
        self.seed, self.block, self.sizes, self.skips = seed, block, sizes, skips
        self.phases = sorted(phases, key=lambda p: p[0])
        self._blocks = {}
        self._trees = {}
        self._drawn = [dict.fromkeys(sizes, 0) | dict(drawn or {})]  # before each phase

    def global_sample(self, t):
        return t + sum(count for at, count in self.skips if at <= t)

    def locate(self, t):
        """(dataset, epoch, window) of the trainer's sample t."""
        name, draw = self.draw(self.global_sample(t))
        size = self.sizes[name]
        epoch = draw // size
        return name, epoch, permute(draw % size, size, epoch_key(derive_key(self.seed, "window order", name), epoch))

    def phase_of(self, g):
        return max(k for k, (start, _) in enumerate(self.phases) if start <= g)

    def draw(self, g):
        """(dataset, how many of it came before) of a global sample."""
        number = self.phase_of(g)
        b, r = divmod(g - self.phases[number][0], self.block)
        name, draw = self.block_order(number, b)[r]
        return name, self.drawn(number)[name] + draw

    def drawn(self, number):
        """What each dataset has drawn before a phase."""
        while (k := len(self._drawn)) <= number:
            self._drawn.append(self.counted(k - 1, self.phases[k][0]))
        return self._drawn[number]

    def counted(self, number, stop):
        """The same before the global sample `stop`, up to which a phase lasts."""
        counts = dict(self.drawn(number))
        for g in range(self.phases[number][0], stop):
            counts[self.draw(g)[0]] += 1
        return counts

    def drawn_before(self, g):
        return self.counted(self.phase_of(g), g)

    def block_order(self, number, b):
        if (number, b) not in self._blocks:
            start, weights = self.phases[number]
            if number not in self._trees:
                integers = smallest_integers(weights)
                trees = [Tree([*integers.values()], lookahead) for lookahead in (0, 1.5, 2, 2.5)]
                self._trees[number] = [*integers], min(trees, key=lambda tree: tree.deviation)
            names, tree = self._trees[number]
            strict = [tree.locate(b * self.block + s) for s in range(self.block)]
            following = {leaf: min(d for k, d in strict if k == leaf) for leaf, _ in strict}
            found = []
            for s in keyed_shuffle(self.block, epoch_key(derive_key(self.seed, "mixture block", start), b)):
                leaf = strict[s][0]
                found.append((names[leaf], following[leaf]))
                following[leaf] += 1
            self._blocks[number, b] = found
        return self._blocks[number, b]
