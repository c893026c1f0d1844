"""Checks a receipt of conceptloader against the published root of a run. Needs Python's standard library only.

    python verify_receipt.py receipt.json 5f0c...e1

Written from docs/receipts-format.md and docs/order.md alone, so that it can be read, or written again, by whoever has
to trust it: nothing of conceptloader is imported. Exit code 0 if the receipt is right, else 1, with what is wrong.
"""

import base64
import hashlib
import json
import math
import sys
from functools import lru_cache

GOLDEN, MIX_A, MIX_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
MASK = 2**64 - 1


class Refused(Exception):
    """What is wrong with a receipt."""


# Hashes: docs/receipts-format.md


def sha256(data):
    return hashlib.sha256(data).digest()


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def digest(text):
    data = base64.b64decode(text, validate=True)
    if len(data) != 32 or base64.b64encode(data).decode() != text:
        raise Refused(f"{text!r} is not the base64 of 32 bytes")
    return data


def climb(entry, path):
    """The root of a tree that has this entry."""
    found = sha256(b"\0" + entry)
    for step in path:
        side, other = step[:1], digest(step[1:])
        if side not in ("L", "R"):
            raise Refused(f"a path has the side {side!r}")
        found = sha256(b"\1" + (other + found if side == "L" else found + other))
    return found


def numbers(*values):
    if any(type(value) is not int for value in values):
        raise Refused(f"{values} are not integers")
    return b"".join(value.to_bytes(8, "little") for value in values)


# Keys and permutations: docs/order.md


def mix64(x):
    x = (x ^ x >> 30) * MIX_A & MASK
    x = (x ^ x >> 27) * MIX_B & MASK
    return x ^ x >> 31


def epoch_key(key, number):
    return mix64(key + mix64(number + GOLDEN & MASK) & MASK)


def derive_key(*parts):
    data = b""
    for part in parts:
        text = str(part).encode()
        data += (b"s" if isinstance(part, str) else b"i") + len(text).to_bytes(8, "little") + text
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=b"conceptloader").digest(), "little")


@lru_cache(64)
def keyed_shuffle(n, key):
    items = list(range(n))
    for i in range(n - 1, 0, -1):
        j = mix64(key + i * GOLDEN & MASK) * (i + 1) >> 64
        items[i], items[j] = items[j], items[i]
    return items


def unpermute(i, n, key):
    if n <= 1024:
        return keyed_shuffle(n, key).index(i)
    bits = (n - 1).bit_length() // 2
    a = (n - 1 >> bits) + 1

    def mixed(x, r):
        x = (x + (key + r * GOLDEN & MASK)) * MIX_A & MASK
        return ((x ^ x >> 32) * MIX_B & MASK) >> 32

    while True:
        left, right = i >> bits, i % 2**bits
        for r in (6, 4, 2, 0):
            right ^= mixed(left, r + 1) >> 32 - bits
            left = (left - (mixed(right, r) * a >> 32)) % a
        i = left * 2**bits + right
        if i < n:
            return i


# The tree of a phase: docs/order.md


def went_left(j, p):
    return j * p + 2**63 >> 64


class Tree:
    """left, right, p: by node. up: child -> (its parent, whether it is the left one)."""

    def __init__(self, weights, lookahead):
        nodes = [(w, k, ~k, [(w, 0.0)]) for k, w in enumerate(weights)]
        inner = len(nodes) - 1
        self.left, self.right, self.p, self.up = [0] * inner, [0] * inner, [0] * inner, {}
        self.root = 0 if inner else ~0
        for made in range(inner):
            nodes.sort(key=lambda node: node[:2])
            heavy = nodes.pop(partner(nodes, lookahead))
            light = nodes.pop(0)
            both, v = light[0] + heavy[0], inner - 1 - made
            self.left[v], self.right[v] = heavy[2], light[2]
            self.up[heavy[2]], self.up[light[2]] = (v, True), (v, False)
            self.p[v] = (heavy[0] * 2**65 + both) // (2 * both)
            leaves = [(w, above + 1 / node[0]) for node in (light, heavy) for w, above in node[3]]
            nodes.append((both, inner + 1 + made, v, critical(leaves)))
        self.deviation = max(w * above for w, above in nodes[0][3]) / 2

    def locate(self, j):
        v = self.root
        while v >= 0:
            before = went_left(j, self.p[v])
            if went_left(j + 1, self.p[v]) > before:
                j, v = before, self.left[v]
            else:
                j, v = j - before, self.right[v]
        return ~v, j

    def position(self, leaf, d):
        v = ~leaf
        while v in self.up:
            v, is_left = self.up[v]
            middle = d * 2**64 + 2**63
            d = -(-middle // self.p[v]) - 1 if is_left else middle // (2**64 - self.p[v])
        return d

    def counts(self, j):
        """{leaf: how many of the first j samples are its}"""
        found, todo = {}, [(self.root, j)]
        for v, count in todo:
            if v < 0:
                found[~v] = count
            else:
                before = went_left(count, self.p[v])
                todo += [(self.left[v], before), (self.right[v], count - before)]
        return found


def critical(leaves):
    worst, kept = -1, []
    for w, above in sorted(leaves, reverse=True):
        if w * above > worst:
            worst = w * above
            kept.append((w, above))
    return kept


def partner(nodes, lookahead):
    if lookahead == 0 or len(nodes) == 2:
        return 1
    best, best_value = 1, math.inf
    for k in range(1, min(17, len(nodes))):
        both, pair = nodes[0][0] + nodes[k][0], (nodes[0], nodes[k])
        value = max(w * ((above + 1 / node[0]) + lookahead / both) for node in pair for w, above in node[3])
        if value < best_value:
            best, best_value = k, value
    return best


# The order of a run


class Order:
    def __init__(self, run):
        self.seed, self.block, self.skips = run["seed"], run["block"], sorted(run["skips"])
        self.phases, base = [], dict.fromkeys(run["members"], 0)
        starts = [start for start, _ in run["phases"]]
        if starts[0] != 0 or starts != sorted(set(starts)):
            raise Refused("the phases of the run do not begin at 0 and then rise")
        for start, weights in run["phases"]:
            if self.phases:
                base = self.counted(start)
            trees = [Tree([weights[name] for name in sorted(weights)], lookahead) for lookahead in (0, 1.5, 2, 2.5)]
            tree = min(trees, key=lambda tree: tree.deviation)  # the first of equal ones
            self.phases.append((start, sorted(weights), tree, base, derive_key(self.seed, "mixture block", start)))
        self.in_block = lru_cache(256)(self.block_order)

    def block_order(self, phase, number):
        _, _, tree, _, key = self.phases[phase]
        strict = [tree.locate(number * self.block + s) for s in range(self.block)]
        following, order = {}, []
        for leaf, d in strict:
            following[leaf] = min(d, following.get(leaf, d))
        for s in keyed_shuffle(self.block, epoch_key(key, number)):
            leaf = strict[s][0]
            order.append((leaf, following[leaf]))
            following[leaf] += 1
        return order

    def counted(self, end):
        """{member: its draws before global sample `end`}, where the last phase that is known ends."""
        start, names, tree, base, _ = self.phases[-1]
        number, rest = divmod(end - start, self.block)
        found = tree.counts(number * self.block)
        for leaf, _ in self.block_order(len(self.phases) - 1, number)[:rest]:
            found[leaf] += 1
        return {**base, **{name: base[name] + found[leaf] for leaf, name in enumerate(names)}}

    def position(self, name, draw):
        """The global sample of a draw; None if there is none."""
        phase = max(k for k, (_, _, _, base, _) in enumerate(self.phases) if base[name] <= draw)
        start, names, tree, base, _ = self.phases[phase]
        if name not in names:
            return None
        found = names.index(name), draw - base[name]
        number = tree.position(*found) // self.block
        return start + number * self.block + self.in_block(phase, number).index(found)

    def global_sample(self, t):
        return t + sum(count for at, count in self.skips if at <= t)

    def trained(self, g):
        """The trainer's sample that reads global sample g; None if it is skipped."""
        skipped = 0
        for at, count in self.skips:
            if at + skipped <= g < at + skipped + count:
                return None
            skipped += count if at + skipped <= g else 0
        return g - skipped

    def samples_of_window(self, name, windows, window, samples):
        """Each of the first `samples` samples that is this window of a member."""
        end, key, epoch = self.global_sample(samples - 1) + 1, derive_key(self.seed, "window order", name), 0
        while (begins := self.position(name, epoch * windows)) is not None and begins < end:
            draw = epoch * windows + unpermute(window, windows, epoch_key(key, epoch))
            g = self.position(name, draw)
            t = self.trained(g) if g is not None and g < end else None
            if t is not None:
                yield t
            epoch += 1


def step_of(starts, t):
    """(step, its first sample) of the step that trains sample t, from the starts of a run."""
    step, c, rule = [start for start in starts if start[1] <= t][-1]
    while True:
        k = max(k for k, (at, _) in enumerate(rule) if at <= c)
        size = rule[k][1]
        steps = -(-(rule[k + 1][0] - c) // size) if k + 1 < len(rule) else math.inf
        if t < c + steps * size:
            return step + (t - c) // size, t - (t - c) % size
        step, c = step + steps, c + steps * size


# The receipt


def check_run(run):
    """That each sample has one step, and the run ends with one."""
    starts = run["starts"]
    if starts[0][1] != 0:
        raise Refused("the run does not begin at sample 0")
    for k in range(1, len(starts)):
        if step_of(starts[:k], starts[k][1]) != (starts[k][0], starts[k][1]):
            raise Refused(f"the start at step {starts[k][0]} does not follow from those before")
    if step_of(starts, run["samples"])[1] != run["samples"]:
        raise Refused("the run does not end with a step")


def sightings(run, root, first, stop):
    """[step, sample, begin, end] for each sample that holds some of tokens [first, stop) of the dataset."""
    order, found = Order(run), []
    for name, (member_root, seq_len, begin, end, masks) in run["members"].items():
        if digest(member_root) != root:
            continue
        windows = (end - begin - 1) // seq_len
        low, high = max(0, -(-(first - begin - seq_len) // seq_len)), min(windows - 1, (stop - 1 - begin) // seq_len)
        for window in range(low, high + 1) if first < stop else ():
            at = begin + window * seq_len
            place = max(first, at) - at, min(stop, at + seq_len + 1) - at
            for t in order.samples_of_window(name, windows, window, run["samples"]):
                read = not any(a < at + seq_len + 1 and at < b and since <= t for a, b, since in masks)
                if read and place[0] < place[1]:
                    found.append([step_of(run["starts"], t)[0], t, *place])
    return sorted(found, key=lambda one: one[1])


FIELDS = {
    "": "format version root run document path shard shard_path sightings",
    "run": "format version seed block members phases skips starts samples",
    "document": "first tokens sha256 id",
    "shard": "first tokens documents",
}


def verify(receipt, published):
    """The sightings of a receipt. Raises: Refused, which says what is wrong."""
    for key, names in FIELDS.items():
        part = receipt[key] if key else receipt
        if sorted(part) != sorted(names.split()):
            raise Refused(f"{key or 'the receipt'} has the fields {sorted(part)}, expected {sorted(names.split())}")
    for part, form in ((receipt, "conceptloader-receipt"), (receipt["run"], "conceptloader-run")):
        if (part["format"], json.dumps(part["version"])) != (form, "1"):
            raise Refused(f"found {part['format']} of version {part['version']}, expected {form} of version 1")
    root = sha256(canonical(receipt["run"])).hex()
    if receipt["root"] != published or root != published:
        raise Refused(f"run: its root is {root} (the receipt says {receipt['root']}), published is {published}")
    document, shard = receipt["document"], receipt["shard"]
    content = bytes.fromhex(document["sha256"])
    if content.hex() != document["sha256"] or len(content) != 32:
        raise Refused("document: sha256 is not 64 lower-case hexadecimal digits")
    entry = numbers(document["first"], document["tokens"]) + content + document["id"].encode()
    shard_root = climb(entry, receipt["path"])
    dataset = climb(numbers(shard["first"], shard["tokens"], shard["documents"]) + shard_root, receipt["shard_path"])
    if dataset not in [digest(member[0]) for member in receipt["run"]["members"].values()]:
        raise Refused("document: it, its shard or their paths are of no dataset of the run")
    if document["first"] + document["tokens"] > shard["tokens"]:
        raise Refused("document: it is longer than its shard")
    check_run(receipt["run"])
    first = shard["first"] + document["first"]
    found = sightings(receipt["run"], dataset, first, first + document["tokens"])
    if json.dumps(found) != json.dumps(receipt["sightings"]):
        raise Refused(f"sightings: the order of the run gives {len(found)}, not those {len(receipt['sightings'])}")
    return found


def main(path, published):
    try:
        with open(path, encoding="utf-8") as file:
            receipt = json.load(file)
        found = verify(receipt, published)
    except Refused as error:
        return f"{path}: refused: {error}"
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        return f"{path}: refused: not a receipt ({type(error).__name__}: {error})"
    steps = sorted({step for step, *_ in found})
    document = receipt["document"]
    print(f"document {document['id']!r} of {document['tokens']} tokens, SHA-256 {document['sha256']}")
    print(f"was in {len(found)} samples, of the steps {', '.join(map(str, steps)) or 'none'}, and in no others")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
