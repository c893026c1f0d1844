"""The order of samples in plain Python integers: slow, obvious, and the definition that the kernels must equal.

Everything here is frozen as order version 1. A change of any constant or line is a new order version: running trainings
rely on it, and the golden vectors in tests/order fail.
"""

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the increment of splitmix64, spreads counters over 64 bits
MIX_A = 0xBF58476D1CE4E5B9  # multipliers of Stafford's mix 13, the finalizer of splitmix64
MIX_B = 0x94D049BB133111EB  # (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014)
ROUNDS = 8
TABLE_MAX = 1024  # up to this n the permutation is an exact keyed table


def mix64(x: int) -> int:
    """A bijection of range(2**64) in which every input bit moves every output bit (splitmix64's finalizer)."""
    x = ((x ^ (x >> 30)) * MIX_A) & MASK
    x = ((x ^ (x >> 27)) * MIX_B) & MASK
    return x ^ (x >> 31)


def keyed_shuffle(n: int, key: int) -> list[int]:
    """Fisher-Yates with a counter-based generator: every permutation of range(n) is equally likely over the keys."""
    items = list(range(n))
    for i in range(n - 1, 0, -1):
        j = (mix64((key + i * GOLDEN) & MASK) * (i + 1)) >> 64
        items[i], items[j] = items[j], items[i]
    return items


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
    """
    if n <= TABLE_MAX:
        return keyed_shuffle(n, key)[i]
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
        return keyed_shuffle(n, key).index(j)
    a, bits = feistel_shape(n)
    while True:
        left, right = j >> bits, j & ((1 << bits) - 1)
        for r in range(ROUNDS - 2, -1, -2):
            right ^= round_value(left, (key + (r + 1) * GOLDEN) & MASK) >> (32 - bits)
            left = (left - ((round_value(right, (key + r * GOLDEN) & MASK) * a) >> 32)) % a
        j = (left << bits) | right
        if j < n:
            return j


def went_left(j: int, p: int) -> int:
    """How many of a node's first j samples went to its left child, whose share is p / 2**64: round(j * share)."""
    return (j * p + (1 << 63)) >> 64


def tree_locate(j: int, left: list[int], right: list[int], share: list[int]) -> tuple[int, int]:
    """(leaf, draw of that leaf) of a tree's j-th sample; children are nodes if >= 0 and leaf ~child otherwise."""
    node = 0 if left else -1
    while node >= 0:
        before = went_left(j, share[node])
        if went_left(j + 1, share[node]) > before:
            j, node = before, left[node]
        else:
            j, node = j - before, right[node]
    return ~node, j


def epoch_key(dataset_key: int, epoch: int) -> int:
    """The permutation key of one dataset epoch."""
    return mix64((dataset_key + mix64((epoch + GOLDEN) & MASK)) & MASK)


def block_order(
    number: int, block: int, key: int, left: list[int], right: list[int], share: list[int]
) -> list[tuple[int, int]]:
    """[(leaf, draw)] of mixture block `number`: the strict choices permuted, every leaf's draws in order."""
    strict = [tree_locate(number * block + s, left, right, share) for s in range(block)]
    following = dict(reversed(strict))  # the first draw of each leaf
    order = []
    for s in keyed_shuffle(block, epoch_key(key, number)):
        leaf = strict[s][0]
        order.append((leaf, following[leaf]))
        following[leaf] += 1
    return order
