"""Whole documents in every sample, without an index: which parts of documents make a pack.

The specification is docs/packing-specification.md.

Plain and slow on purpose; kernels/packing.py is the compiled twin.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np

from conceptloader.config.mask import NOTHING, Mask
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read.dataset import Dataset
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


class Part(NamedTuple):
    """Tokens [start, start + tokens) of a document that ends at `end`, at `place` of pack `bin` of its block."""

    bin: int
    place: int
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


def pack(pieces: Iterable[Piece], bins: int, packing: Packing) -> list[Part]:
    """Best fit, the longest piece first; what fits nowhere whole comes last, into any room that is left.

    The parts of a pack follow each other in the order in which they are returned.
    """
    room = [packing.seq_len] * bins
    found: list[Part] = []
    left: list[Piece] = []

    def put(b: int, piece: Piece, start: int, tokens: int) -> None:
        found.append(Part(b, packing.seq_len - room[b], start, tokens, piece.end, piece.document))
        room[b] -= tokens

    for piece in sorted(pieces, key=lambda piece: (-piece.tokens, piece.start)):
        fitting = [b for b in range(bins) if room[b] >= piece.tokens]
        if fitting:
            put(min(fitting, key=lambda b: (room[b], b)), piece, piece.start, piece.tokens)
        elif packing.overflow == "refuse":
            raise _refused(piece.document, piece.tokens, "room for it in a pack of its block", FIT_BLOCK)
        else:
            left.append(piece)
    for piece in left:
        start, stop = piece.start, piece.start + piece.tokens
        while start < stop:
            b = max(range(bins), key=lambda b: (room[b], b))
            taken = min(stop - start, room[b])
            if not taken:
                raise FormatError(
                    "",
                    "more tokens in the document table than when it was opened",
                    "the same",
                    "run `conceptloader verify DATASET --full`, and restore the files it names",
                )
            put(b, piece, start, taken)
            start = start + taken if packing.overflow == "split" else stop
    return found


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
        self._last: tuple[int, list[Part]] = -1, []  # the block that was asked for last

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

    def parts(self, i: int) -> list[Part]:
        """What pack i holds, in order."""
        block, b = divmod(i, self.packing.bins)
        return [part for part in self._block(block) if part.bin == b]

    def _block(self, number: int) -> list[Part]:
        kept, parts = self._last
        if kept != number:
            try:
                bins, pieces = self.block(number)
                parts = pack(pieces, bins, self.packing)
            except (ConfigError, FormatError) as error:
                raise error.within(self.dataset.path) from error
            self._last = number, parts
        return parts

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
