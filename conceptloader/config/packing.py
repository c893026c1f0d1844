"""Whole documents in every sample, without an index: how many packs there are.

Which parts of documents a pack holds is for kernels to say. The specification is docs/packing.md;
tests/packing/plain.py says the same without kernels.
"""

from dataclasses import dataclass
from typing import get_args

import numpy as np

from conceptloader.config.mask import NOTHING, Mask
from conceptloader.errors import ConfigError
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


class Packs:
    """The packs of the documents in a token range, which begins and ends between documents.

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
