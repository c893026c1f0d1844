"""Whole documents in every sample, without an index: which parts of documents make a pack.

The specification is docs/packing.md; tests/packing/plain.py says the same without kernels.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np

from conceptloader.config.mask import NOTHING, Mask
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read.dataset import Dataset
from conceptloader.kernels.kernel import Array
from conceptloader.kernels.packing import make_room, pack_pieces
from conceptloader.order.progress.spec import Overflow

MAX_BLOCK_TOKENS = 1 << 27
OVERFLOWS = get_args(Overflow)
FIT = "set packing.overflow: split or truncate, or read a subset without such documents (conceptloader subset)"
FIT_BLOCK = f"lower packing.bins, which leaves more room in a block, or {FIT}"


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How documents become packs of seq_len tokens.

    What begins in a block of (bins - 1) * seq_len tokens of the stream goes into `bins` packs.

    overflow: of a document that does not fit whole, the rest goes elsewhere (split), is dropped (crop), or it is an
    error (refuse). Raises ConfigError for blocks above MAX_BLOCK_TOKENS.
    """

    seq_len: int
    bins: int = 64
    overflow: Overflow = "split"

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ConfigError(
                "packing.bins",
                str(self.bins),
                "2 or more: the documents of (bins - 1) * seq_len tokens are spread over so many packs",
                "set packing.bins to 2 or more, or omit it",
            )
        if self.block_tokens > MAX_BLOCK_TOKENS:
            raise ConfigError(
                "packing.bins",
                f"{self.bins} with seq_len {self.seq_len}, blocks of {self.block_tokens} tokens",
                f"blocks of at most {MAX_BLOCK_TOKENS:,}",
                "lower packing.bins or seq_len",
            )

    @property
    def block_tokens(self) -> int:
        """Tokens of the stream in which the pieces of a block begin."""
        return (self.bins - 1) * self.seq_len

    def packs(self, tokens: int) -> int:
        """Packs of a stream of `tokens` tokens. The last block has no more of them than it needs, and one."""
        blocks, rest = divmod(tokens, self.block_tokens)
        return blocks * self.bins + (-(-rest // self.seq_len) + 1 if rest else 0)


class Piece(NamedTuple):
    """Tokens [start, start + tokens) of a document that ends at token `end`."""

    start: int
    tokens: int
    end: int
    document: int


def pieces_of(documents: Iterable[tuple[int, int, int]], first: int, last: int, packing: Packing) -> Iterator[Piece]:
    """What begins in tokens [first, last), of documents (number, start, end): pieces of seq_len tokens, and rests."""
    size, split = packing.seq_len, packing.overflow == "split"
    for number, start, end in documents:
        if packing.overflow == "refuse" and end - start > size:
            raise _refused(number, end - start, f"at most {size}, the seq_len", FIT)
        before = max(0, -(-(first - start) // size))  # pieces of the blocks before
        for at in range(start + before * size, min(end, last), size):
            if at == start or split:
                yield Piece(at, min(size, end - at), end, number)


def pack(pieces: Sequence[Piece], bins: int, packing: Packing) -> Array:
    """Best fit, the longest piece first; what fits nowhere whole comes last, into any room that is left.

    Returns: PIECE [n]. The parts of a pack follow each other.
    """
    room = make_room(len(pieces), packing.seq_len, packing.bins)
    for k, piece in enumerate(pieces):
        room.pieces[k] = (-1, -1, *piece)
    parts = pack_pieces(room, len(pieces), bins, OVERFLOWS.index(packing.overflow))
    if parts < 0 and packing.overflow == "refuse":
        refused = pieces[-1 - parts]
        raise _refused(refused.document, refused.tokens, "room for it in a pack of its block", FIT_BLOCK)
    if parts < 0:
        raise FormatError(
            "",
            "more tokens in the document table than when it was opened",
            "the same",
            "run `conceptloader verify DATASET --full`, and restore the files it names",
        )
    return room.packed[:parts]


def _refused(document: int, tokens: int, expected: str, fix: str) -> ConfigError:
    return ConfigError("packing", f"document {document} of {tokens} tokens while overflow is error", expected, fix)


class Packs:
    """Which parts of documents a pack holds, of those in a token range, which begins and ends between documents.

    mask: a block that touches a shard which is never read has empty packs.

    Raises ConfigError for a range that is not all documents.
    """

    def __init__(self, dataset: Dataset, packing: Packing, token_range: tuple[int, int], mask: Mask = NOTHING) -> None:
        self.dataset, self.packing = dataset, packing
        self.start, self.stop = token_range
        starts, runs = np.array(dataset.shard_starts), dataset.runs
        table = dataset.manifest.shards
        closed = np.flatnonzero(mask.closed(dataset) & (starts[:-1] < starts[1:]))
        self._closed = list(zip(starts[closed].tolist(), starts[closed + 1].tolist(), strict=True))
        if runs is not None:
            row, end_row = (np.searchsorted(starts, tokens, side="right") for tokens in (runs.source, runs.end - 1))
            if (across := np.flatnonzero(row != end_row)).size:
                raise ConfigError(
                    "packing",
                    f"document {across[0]} of the view {dataset.path} across shards of its source",
                    "each in one of them",
                    "run `conceptloader subset` again, or omit packing",
                )
        else:
            inside = (table.tokens > 0) & (starts[:-1] < self.stop) & (starts[1:] > self.start)
            if (without := np.flatnonzero(inside & (table.documents == 0))).size:
                raise ConfigError(
                    "packing",
                    f"no document table in shard {without[0]} of {dataset.path}",
                    "a document table in each shard",
                    "run `conceptloader build` or `adopt` with documents, or omit packing",
                )

    def __len__(self) -> int:
        return self.packing.packs(self.stop - self.start)

    @property
    def closed(self) -> int:
        """How many packs are empty as their block touches a shard that is never read."""
        size, bins, total, counted = self.packing.block_tokens, self.packing.bins, 0, 0
        for start, stop in self._closed:  # in order
            if start < self.stop and stop > self.start:
                block = max((start - self.start) // size, counted)
                counted = -(-(min(stop, self.stop) - self.start) // size)
                total += min(counted * bins, len(self)) - min(block * bins, len(self))
        return total

    def block(self, number: int) -> tuple[int, list[Piece]]:
        """(packs, pieces) of a block."""
        first = self.start + number * self.packing.block_tokens
        last = min(first + self.packing.block_tokens, self.stop)
        bins = min(self.packing.bins, len(self) - number * self.packing.bins)
        if any(a < last and first < b for a, b in self._closed):
            return bins, []
        holding = self.dataset.documents_in(first, last)
        numbers, starts = holding.ids.tolist(), holding.first.tolist()
        ends = [*starts[1:], self.dataset.document_range(numbers[-1])[1]]
        return bins, list(pieces_of(zip(numbers, starts, ends, strict=True), first, last, self.packing))
