"""Order version 2: phases whose weights move to others over a number of samples.

Each sample of such a phase falls into one of two trees, that of the earlier weights or that of the later ones, whose
share grows. All else is as in version 1, of which a phase without a ramp is one. Plain like reference.py, and frozen.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from conceptloader.base.strict import Section, within
from conceptloader.order.reference import MASK
from conceptloader.order.tree import Tree, went_left

RAMP_VERSION = 2
MAX_RAMP = 1 << 31  # samples: of r of them, r * r fits a word, and rounding `bend` moves a count by 1/8 at most
END = 1 << 32  # beyond the last block of the longest ramp
Shape = Literal["linear", "cosine"]

# (1 - cos(pi * k / 32)) / 2 in units of 2**-32, for k from 0 to 16; the other half mirrors it.
COSINE = [
    0, 10340721, 41263296, 92469925, 163467459, 253572154, 361916252, 487456340, 628983398,
    785134444, 954405657, 1135166864, 1325677235, 1524102050, 1728530372, 1936993442, 2147483648,
]  # fmt: skip
SHARES: dict[Shape, list[int]] = {
    "linear": [0, 1 << 32],
    "cosine": COSINE + [(1 << 32) - share for share in reversed(COSINE[:-1])],
}
"""Of the later weights, at equal distances over the ramp; between them the share is linear."""


@dataclass(frozen=True, kw_only=True)
class Ramp(Section):
    """How the weights of the phase before move to those of a phase.

    Attributes:
        samples: Global samples from the start of the phase on, after which its weights hold in full; up to 2**31.
        shape: "linear", or "cosine": half a period, slow at both ends.
    """

    samples: Annotated[int, within(1, MAX_RAMP)]
    shape: Shape = "linear"

    def __str__(self) -> str:
        return f"{self.shape} over {self.samples} samples"


class Segment(NamedTuple):
    """From sample `start` of a ramp on, (offset + r * slope + r * r * bend) >> 64 of start + r samples have moved."""

    start: int
    offset: int
    slope: int
    bend: int


def segments_of(ramp: Ramp) -> list[Segment]:
    """Integers that decide a ramp; the last segment is that of samples beyond it, of a block that its end truncates."""
    shares, offset, result = SHARES[ramp.shape], 1 << 63, []
    edges = [k * ramp.samples // (len(shares) - 1) for k in range(len(shares))]
    for k, start in enumerate(edges[:-1]):
        if length := edges[k + 1] - start:
            slope = shares[k] << 32
            bend = (((shares[k + 1] - shares[k]) << 32) + length) // (2 * length)
            result.append(Segment(start, offset, slope, bend))
            offset += length * slope + length * length * bend
    return [*result, Segment(ramp.samples, offset, MASK, 0)]


def share_at(ramp: Ramp, j: int) -> float:
    """Of the later weights, around sample j of a ramp."""
    at = segment_at(segments_of(ramp), j)
    return (at.slope + (2 * (j - at.start) + 1) * at.bend) / 2**64


def segment_at(segments: list[Segment], j: int) -> Segment:
    return segments[bisect_right(segments, j, key=lambda one: one.start) - 1]


@dataclass(frozen=True)
class RampTree(Tree):
    """The trees of the earlier and the later weights. left, right, share: nodes of the former, then of the latter.

    paths: of all leaves in the former, then of all in the latter. To a leaf that a tree lacks it is the last node, that
    is no child and gives it nothing. leaves: leaf k of either tree is leaves[tree][k] here.
    """

    ramp: Ramp
    segments: list[Segment]
    trees: tuple[Tree, Tree]
    leaves: tuple[list[int], list[int]]

    @classmethod
    def of(cls, ramp: Ramp, trees: tuple[Tree, Tree], names: tuple[list[str], list[str]]) -> "RampTree":
        """names: of the leaves of both trees. Leaf k is the k-th of all by name."""
        every = {name: k for k, name in enumerate(sorted({*names[0], *names[1]}))}
        leaves = [every[name] for name in names[0]], [every[name] for name in names[1]]
        left: list[int] = []
        right: list[int] = []
        paths = [[(-1, True)] for _ in range(2 * len(every))]
        for number, (tree, known) in enumerate(zip(trees, leaves, strict=True)):
            offset = len(left)
            for children, out in ((tree.left, left), (tree.right, right)):
                out += [child + offset if child >= 0 else ~known[~child] for child in children]
            for leaf, path in zip(known, tree.paths, strict=True):
                paths[number * len(every) + leaf] = [(node + offset, is_left) for node, is_left in path]
        share = [*trees[0].share, *trees[1].share, 0]
        # Of the samples that moved, 1/2 is rounded away, and 1/8 at most by `bend`.
        deviation = trees[0].deviation + trees[1].deviation + 0.625
        return cls([*left, ~0], [*right, ~0], share, paths, deviation, ramp, segments_of(ramp), trees, leaves)

    @property
    def root(self) -> int:
        """Of the earlier tree."""
        return 0 if self.trees[0].share else ~self.leaves[0][0]

    @property
    def later_root(self) -> int:
        return len(self.trees[0].share) if self.trees[1].share else ~self.leaves[1][0]

    @property
    def words(self) -> list[list[int]]:
        """The segments for kernels: the offset in two words."""
        return [[s.start, s.offset >> 64, s.offset & MASK, s.slope, s.bend] for s in self.segments]

    def split(self, j: int) -> tuple[int, int]:
        """How many of the first j samples the earlier and the later tree got."""
        at = segment_at(self.segments, j)
        r = j - at.start
        moved = (at.offset + r * at.slope + r * r * at.bend) >> 64
        return j - moved, moved

    def count(self, leaf: int, j: int) -> int:
        total = 0
        for path, count in zip(self.paths[leaf :: len(self.paths) // 2], self.split(j), strict=True):
            for node, is_left in path:
                before = went_left(count, self.share[node])
                count = before if is_left else count - before
            total += count
        return total

    def locate(self, j: int) -> tuple[int, int]:
        counts = self.split(j)
        is_later = self.split(j + 1)[1] > counts[1]
        leaf = self.leaves[is_later][self.trees[is_later].locate(counts[is_later])[0]]
        return leaf, self.count(leaf, j)

    def counts(self, j: int) -> list[int]:
        return [self.count(leaf, j) for leaf in range(len(self.paths) // 2)]

    def position(self, leaf: int, draw: int) -> int:
        return bisect_right(range(END), draw, key=lambda j: self.count(leaf, j + 1))
