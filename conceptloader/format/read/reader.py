"""The plain reader of one dataset's shards: bounded positioned reads, checked, as numpy arrays.

Everything here is local to a shard; dataset.py puts shards together. It is the reference for the compiled reader.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.read.files import Files
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.layout import bad

DAMAGED = "the file is damaged: run `conceptloader verify --full`, restore or rebuild it"
# Holes up to this many bytes between wanted records are read along rather than skipped with another call.
_MERGE_BYTES = 4096

Runs = tuple[Ints, Ints, NDArray[np.bool_], NDArray[np.bool_], NDArray[np.uint32]]


class ShardReader:
    """Reads by (shard, token range within the shard)."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.manifest = files.manifest
        self.table = files.table
        self._block = files.manifest.block_tokens

    def stream(self, shard: int, start: int, stop: int) -> NDArray[np.void]:
        """The structured items [start, stop) of a shard, as on disk; one read."""
        layout = self.manifest.layouts[self.table.layout[shard]]
        offset = int(self.table.offset[shard]) + start * layout.itemsize
        data = self.files.read("stream.bin", shard, offset, (stop - start) * layout.itemsize)
        return np.frombuffer(data, layout.dtype)

    def check_ids(self, shard: int, start: int, tokens: NDArray[Any]) -> None:
        """Refuse token ids that the dataset cannot have; tokens: those of a shard from token `start` on."""
        limit = self.manifest.num_ids
        if tokens.dtype.kind == "u" and limit >= 1 << 8 * tokens.dtype.itemsize:
            return  # the type holds no other
        wrong = (tokens < 0) | (tokens >= limit)
        if wrong.any():
            at = int(np.argmax(wrong))
            before = int(self.table.tokens[:shard].sum())
            place = f"token {start + at} of shard {shard}, token {before + start + at} of the dataset"
            why = "the vocabulary" if self.manifest.tokenizer else "as no tokenizer is known"
            raise self.bad("stream.bin", shard, f"id {int(tokens[at])} as {place}", f"ids in [0, {limit}), {why}")

    def documents(self, shard: int, start: int, stop: int) -> tuple[Ints, Ints]:
        """(first token, ordinal) of the documents that hold tokens [start, stop), start < stop; two reads.

        Empty documents hold none. Without a document table: one entry, ordinal -1.
        """
        count = int(self.table.documents[shard])
        if not count:
            return np.zeros(1, np.int64), np.full(1, -1, np.int64)
        tokens = int(self.table.tokens[shard])
        low, high = self._blocks("documents.bin", shard, 8 * (count + 1), start, stop, count)
        data = self.files.read("documents.bin", shard, 8 * low, 8 * (high - low + 1))
        first = np.frombuffer(data, fmt.OFFSET).astype(np.int64)
        self._check_order(first, start, stop, tokens, strict=False, kind="documents.bin", shard=shard)
        # The last document that begins at or before a token holds it; of equal starts only the last holds anything.
        holds = np.empty(len(first) - 1, bool)
        np.less(first[:-1], first[1:], out=holds)
        holds &= (first[1:] > start) & (first[:-1] < stop)
        ordinals = np.flatnonzero(holds)
        return first[ordinals], ordinals + low

    def document_range(self, shard: int, ordinal: int) -> tuple[int, int]:
        """The tokens [start, stop) of a document; one read."""
        data = self.files.read("documents.bin", shard, 8 * ordinal, 16)
        start, stop = np.frombuffer(data, fmt.OFFSET).tolist()
        if not start <= stop <= int(self.table.tokens[shard]):
            found = f"document {ordinal} at tokens [{start}, {stop})"
            raise self.bad("documents.bin", shard, found, "starts that do not decrease")
        return start, stop

    def runs(self, shard: int, track: str, start: int, stop: int, items: NDArray[np.void] | None = None) -> Runs:
        """The maximal runs of one record that touch tokens [start, stop), start < stop, gaps left out.

        items: what `stream` gave for the same range widened by one token on both sides, within the shard; saves the
        read of a dense track. Returns: start, end (clipped), begins_before, ends_after, record.
        """
        encoding = self.table.tracks[track].encoding[shard]
        if encoding is None:
            none = np.zeros(0, np.int64)
            return none, none, none.astype(bool), none.astype(bool), none.astype(np.uint32)
        if encoding == fmt.DENSE:
            first, end, record = self._dense_runs(shard, track, start, stop, items)
        else:
            first, end, record = self._span_runs(shard, track, start, stop)
        real = record != fmt.NO_RECORD
        first, end, record = first[real], end[real], record[real]
        records = int(self.table.tracks[track].records[shard])
        if len(record) and int(record.max()) >= records:
            kind = "stream.bin" if encoding == fmt.DENSE else f"{track}.spans"
            raise self.bad(kind, shard, f"record {int(record.max())} of track {track}", f"numbers below {records}")
        return np.maximum(first, start), np.minimum(end, stop), first < start, end > stop, record

    def whole_runs(
        self, shard: int, track: str, low: int, high: int, step: int
    ) -> Iterator[tuple[Ints, Ints, NDArray[np.uint32]]]:
        """(start, end, record) of the runs in tokens [low, high), read `step` tokens at a time, none cut in between."""
        begun: int | None = None  # where the run began that goes on beyond the tokens read so far
        for at in range(low, high, step):
            stop = min(at + step, high)
            start, end, _, after, record = self.runs(shard, track, at, stop)
            if not len(start):
                continue
            if begun is not None:
                start[0] = begun
            begun = int(start[-1]) if after[-1] and stop < high else None
            whole = len(start) - (begun is not None)
            yield start[:whole], end[:whole], record[:whole]

    def _dense_runs(
        self, shard: int, track: str, start: int, stop: int, items: NDArray[np.void] | None
    ) -> tuple[Ints, Ints, NDArray[np.uint32]]:
        low, high = max(0, start - 1), min(stop + 1, int(self.table.tokens[shard]))
        if items is None:
            items = self.stream(shard, low, high)
        ids = items[fmt.dense_field(track)]
        borders = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        first = np.concatenate([[0], borders])
        end = np.append(borders, high - low)
        inside = (end + low > start) & (first + low < stop)
        return first[inside] + low, end[inside] + low, ids[first[inside]]

    def _span_runs(self, shard: int, track: str, start: int, stop: int) -> tuple[Ints, Ints, NDArray[np.uint32]]:
        kind = f"{track}.spans"
        count, tokens = int(self.table.tracks[track].entries[shard]), int(self.table.tokens[shard])
        size = fmt.ENTRY.itemsize
        low, high = self._blocks(kind, shard, size * count, start, stop, count)
        until = min(high + 1, count)
        entries = np.frombuffer(self.files.read(kind, shard, size * low, size * (until - low)), fmt.ENTRY)
        first = entries["first"].astype(np.int64)
        if high == count:
            first = np.append(first, tokens)
        self._check_order(first, start, stop, tokens, strict=True, kind=kind, shard=shard)
        inside = np.flatnonzero((first[1:] > start) & (first[:-1] < stop))
        return first[inside], first[inside + 1], entries["record"][inside]

    def _blocks(self, kind: str, shard: int, table_at: int, start: int, stop: int, count: int) -> tuple[int, int]:
        """Numbers low, high: items (documents, entries) low to high - 1 hold tokens [start, stop); one read.

        Item `high` begins behind the range, or it is `count`, which stands for the end of the shard.
        """
        first, last = start // self._block, -(-stop // self._block)
        data = self.files.read(kind, shard, table_at + 8 * first, 8 * (last - first + 1))
        low, high = int.from_bytes(data[:8], "little"), min(int.from_bytes(data[-8:], "little") + 1, count)
        if not low < high:
            raise self.bad(kind, shard, f"block table entries {low} and {high - 1}", f"rising numbers below {count}")
        return low, high

    def _check_order(
        self, first: Ints, start: int, stop: int, tokens: int, strict: bool, kind: str, shard: int
    ) -> None:
        """Positions read from a file must rise, lie in the shard and enclose the range they were looked up for."""
        rising = (first[1:] > first[:-1]).all() if strict else (first[1:] >= first[:-1]).all()
        if not rising or not 0 <= first[0] <= start or not stop <= first[-1] <= tokens:
            raise self.bad(
                kind,
                shard,
                f"positions {first[0]} to {first[-1]} for tokens [{start}, {stop})",
                f"{'rising' if strict else 'non-decreasing'} positions in [0, {tokens}] that enclose these tokens",
            )

    def records(self, shard: int, track: str, numbers: NDArray[np.uint32]) -> list[memoryview]:
        """The bytes of the records `numbers`, in that order, views into few buffers.

        Neighbouring numbers cost one index read and one data read together; far apart ones are read in groups.
        """
        if not len(numbers):
            return []
        wanted, order = numbers.astype(np.int64), None
        if (wanted[1:] <= wanted[:-1]).any():
            wanted, order = np.unique(wanted, return_inverse=True)
        total = int(self.table.files[f"{track}.data"].size[shard])
        begins, ends = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.int64)
        for low, high in _groups(wanted, wanted + 1, _MERGE_BYTES // 8):
            first, last = int(wanted[low]), int(wanted[high - 1])
            index = self.files.read(f"{track}.index", shard, 8 * first, 8 * (last - first + 2))
            offsets = np.frombuffer(index, fmt.OFFSET)
            if offsets[-1] > total or (offsets[1:] < offsets[:-1]).any():
                raise self.bad(
                    f"{track}.index",
                    shard,
                    f"offsets {offsets[0]} to {offsets[-1]} for records {first} to {last}",
                    f"non-decreasing offsets up to {total}",
                )
            at = wanted[low:high] - first
            begins[low:high], ends[low:high] = offsets[at], offsets[at + 1]
        if (begins[1:] < ends[:-1]).any():
            raise self.bad(f"{track}.index", shard, "offsets that fall", f"non-decreasing offsets up to {total}")
        views: list[memoryview] = []
        for low, high in _groups(begins, ends, _MERGE_BYTES):
            base = int(begins[low])
            data = memoryview(self.files.read(f"{track}.data", shard, base, int(ends[high - 1]) - base))
            views += [
                data[a - base : b - base]
                for a, b in zip(begins[low:high].tolist(), ends[low:high].tolist(), strict=True)
            ]
        return views if order is None else [views[i] for i in order.tolist()]

    def external_id(self, shard: int, ordinal: int) -> str | None:
        """The id that a document had in the input, or None; two reads."""
        size = int(self.table.files["documents.ids"].size[shard])
        if size < 0:
            return None
        base = 8 * (int(self.table.documents[shard]) + 1)
        data = self.files.read("documents.ids", shard, 8 * ordinal, 16)
        start, stop = np.frombuffer(data, fmt.OFFSET).tolist()
        if not start <= stop <= size - base:
            rule = f"non-decreasing offsets up to {size - base}"
            raise self.bad("documents.ids", shard, f"offsets {start}, {stop}", rule)
        try:
            return self.files.read("documents.ids", shard, base + start, stop - start).decode("utf-8") or None
        except UnicodeDecodeError as error:
            raise self.bad("documents.ids", shard, f"an id that is not UTF-8 ({error})", "UTF-8") from error

    def bad(self, kind: str, shard: int, found: str, expected: str) -> Exception:
        """For a file of a shard whose content cannot be right."""
        return bad(self.files.path(kind, shard), found, expected, DAMAGED)


def _groups(begins: Ints, ends: Ints, hole: int) -> list[tuple[int, int]]:
    """Index ranges [low, high) of rising intervals whose holes are at most `hole`."""
    cuts = np.flatnonzero(begins[1:] - ends[:-1] > hole) + 1
    edges = [0, *cuts.tolist(), len(begins)]
    return list(pairwise(edges))
