"""What docs/order.md says of trees, blocks, phases, skips and steps in plain Python, one sample at a time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from conceptloader.order.reference import PhaseOrder, blocks_key, epoch_key, keyed_shuffle, permute
from conceptloader.order.tree import Tree, build_tree, went_left


def tree_locate(tree: Tree, j: int) -> tuple[int, int]:
    """(leaf, draw of that leaf) of the j-th sample."""
    node = tree.root
    while node >= 0:
        before = went_left(j, tree.share[node])
        if went_left(j + 1, tree.share[node]) > before:
            j, node = before, tree.left[node]
        else:
            j, node = j - before, tree.right[node]
    return ~node, j


def tree_position(tree: Tree, leaf: int, draw: int) -> int:
    """The inverse of `tree_locate`: the position of a leaf's draw-th sample."""
    for node, is_left in reversed(tree.paths[leaf]):
        p = tree.share[node]
        middle = (draw << 64) + (1 << 63)
        # the smallest j after which the child has draw + 1: its count is left(j + 1), or j + 1 - left(j + 1)
        draw = -(-middle // p) - 1 if is_left else middle // ((1 << 64) - p)
    return draw


def block_order(phase: PhaseOrder, number: int, block: int) -> list[tuple[int, int]]:
    """[(leaf, draw)] of block `number`: the strict choices permuted, every leaf's draws in order."""
    strict = [tree_locate(phase.tree, number * block + s) for s in range(block)]
    following = dict(reversed(strict))  # the first draw of each leaf
    order = []
    for s in keyed_shuffle(block, epoch_key(phase.key, number)):
        leaf = strict[s][0]
        order.append((leaf, following[leaf]))
        following[leaf] += 1
    return order


def counts(phase: PhaseOrder, g: int, block: int) -> list[int]:
    """Draws of every dataset before global sample g of this phase."""
    number, rest = divmod(g - phase.start, block)
    found = phase.counts(g - rest)
    for leaf, _ in block_order(phase, number, block)[:rest] if rest else ():
        found[phase.members[leaf]] += 1
    return found


def order_phases(
    phases: Iterable[tuple[int, Mapping[str, int]]], names: Sequence[str], seed: int, block: int
) -> list[PhaseOrder]:
    """The phases of a mixture of the datasets `names`, from (start, smallest integers) in order of their starts."""
    index = {name: k for k, name in enumerate(names)}
    result: list[PhaseOrder] = []
    for start, weights in phases:
        ordered = {name: weights[name] for name in sorted(weights)}
        base = counts(result[-1], start, block) if result else [0] * len(names)
        members = [index[name] for name in ordered]
        tree = build_tree(list(ordered.values()))
        result.append(PhaseOrder(start, ordered, members, tree, blocks_key(seed, start), base))
    return result


def locate(phases: Sequence[PhaseOrder], block: int, g: int) -> tuple[int, int]:
    """(dataset, draw) of global sample g."""
    phase = [phase for phase in phases if phase.start <= g][-1]
    number, r = divmod(g - phase.start, block)
    leaf, draw = block_order(phase, number, block)[r]
    dataset = phase.members[leaf]
    return dataset, phase.base[dataset] + draw


def position(phases: Sequence[PhaseOrder], block: int, dataset: int, draw: int) -> int | None:
    """The inverse of `locate`; None if no sample is this draw: the dataset left before."""
    phase = [phase for phase in phases if phase.base[dataset] <= draw][-1]
    if dataset not in phase.members:
        return None
    found = phase.members.index(dataset), draw - phase.base[dataset]
    number = tree_position(phase.tree, *found) // block
    return phase.start + number * block + block_order(phase, number, block).index(found)


def window_of(draw: int, size: int, key: int) -> tuple[int, int]:
    """(epoch, window) of a draw of a dataset of `size` windows with this key."""
    epoch, i = divmod(draw, size)
    return epoch, permute(i, size, epoch_key(key, epoch))


def global_index(t: int, skips: Iterable[tuple[int, int]]) -> int:
    """The global sample that the trainer's sample t reads, with skips (at, count), `at` in the trainer's samples."""
    return t + sum(count for at, count in skips if at <= t)


def trainer_index(g: int, skips: Iterable[tuple[int, int]]) -> int | None:
    """The inverse; None if global sample g is passed over."""
    skipped = 0
    for at, count in sorted(skips):
        if at + skipped <= g < at + skipped + count:
            return None
        skipped += count if at + skipped <= g else 0
    return g - skipped


def steps(rule: Sequence[tuple[int, int]], consumed: int = 0) -> Iterator[tuple[int, int]]:
    """[first, last + 1) of the trainer's samples of every step, from a step that starts at sample `consumed`.

    rule: (from_consumed, batch size), the first from 0, ascending; the last entry reached when a step starts sizes it.
    """
    while True:
        size = [size for at, size in rule if at <= consumed][-1]
        yield consumed, consumed + size
        consumed += size


def rank_samples(
    start: int, stop: int, micro_batch_size: int, dp_size: int, dp_rank: int, strided: bool = False
) -> list[list[int]]:
    """The micro batches of one rank in a step [start, stop)."""
    groups, slots = range(start, stop, micro_batch_size * dp_size), range(micro_batch_size)
    if strided:
        return [[first + slot * dp_size + dp_rank for slot in slots] for first in groups]
    return [[first + dp_rank * micro_batch_size + slot for slot in slots] for first in groups]
