"""Spans of many documents at once, for writers that add whole batches (`ShardWriter.add_documents`)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from conceptloader.errors import InputError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints


@dataclass(frozen=True)
class BulkSpans:
    """Spans of one track over a batch of documents.

    start, end: int64 [m], in tokens of the batch; in order, disjoint, none across a document border.
    record: int64 [m], which of the batch's r records a span has; records may be shared.
    data, offsets: record i is data[offsets[i]:offsets[i + 1]], encoded by the track's codec; offsets int64 [r + 1].
    """

    start: Ints
    end: Ints
    record: Ints
    data: Any
    offsets: Ints

    def check(self, documents: Ints, where: str) -> None:
        """documents: where the batch's documents begin and end, int64 [n + 1]. Raises: InputError."""
        lengths = np.diff(self.offsets)
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.data) or (lengths < 0).any():
            raise InputError(
                f"{where}: found record offsets that do not fit the data, expected increasing ones to its end"
            )
        if len(lengths) and int(lengths.max()) > fmt.MAX_RECORD_BYTES:
            raise InputError(
                f"{where}: found a record of {lengths.max()} bytes, expected at most {fmt.MAX_RECORD_BYTES}"
            )
        if not len(self.start):
            return
        before = np.concatenate([documents[:1], self.end[:-1]])
        document = np.searchsorted(documents, self.start, "right") - 1
        good = (self.start >= before) & (self.end > self.start) & (document < len(documents) - 1)
        good &= self.end <= documents[np.minimum(document + 1, len(documents) - 1)]
        if not good.all():
            i = int(np.argmin(good))
            raise InputError(
                f"{where}: found span [{self.start[i]}, {self.end[i]}) of the batch after one that ends at "
                f"{before[i]}, expected spans in order, disjoint and within one document; sort them, and "
                "resolve overlaps first"
            )
        if int(self.record.min()) < 0 or int(self.record.max()) >= len(lengths):
            raise InputError(
                f"{where}: found a record number outside [0, {len(lengths)}), expected one of the batch's records"
            )

    def entries(self, base: int, end: int, record: int) -> "np.ndarray[Any, np.dtype[np.void]]":
        """The spans as entries of a shard, gaps included.

        base: where the batch begins in the shard; end: first token of the shard without an entry; record: the number
        of the batch's first record in the shard.
        """
        start = self.start + base
        before = np.concatenate([np.array([end], np.int64), self.end[:-1] + base])
        gap = start > before
        place = np.arange(len(start)) + np.cumsum(gap)
        entries = np.empty(len(start) + int(gap.sum()), fmt.ENTRY)
        entries["first"][place] = start
        entries["record"][place] = self.record + record
        entries["first"][place[gap] - 1] = before[gap]
        entries["record"][place[gap] - 1] = fmt.NO_RECORD
        return entries
