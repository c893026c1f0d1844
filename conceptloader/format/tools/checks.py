"""Content checks of the files of a shard: every byte is read, in order, and hashed on the way.

Findings are FormatErrors whose messages leave out the file: verify.py adds it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.errors import FormatError
from conceptloader.format.read.files import Files
from conceptloader.format.read.lookup import read_items
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.codecs import Codec, ConceptsCodec
from conceptloader.format.spec.manifest import Manifest

_CHUNK = 1 << 22
_BLOCKS = 1 << 10  # blocks of a block table checked at a time; their items are read along


class ShardChecks:
    """Checks of the files of one shard. Each returns the checksum of its file."""

    def __init__(self, manifest: Manifest, files: Files, shard: int) -> None:
        self.manifest = manifest
        self.files = files
        self.shard = shard
        self.tokens = int(manifest.shards.tokens[shard])

    def size(self, kind: str) -> int:
        return int(self.files.table.files[kind].size[self.shard])

    def _arrays(
        self, kind: str, checksum: "xxhash.xxh3_64", dtype: Any, offset: int, count: int
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """(number of the first item, items) for `count` items of `dtype` from byte `offset` on."""
        dtype = np.dtype(dtype)
        step = max(1, _CHUNK // dtype.itemsize)
        for i in range(0, count, step):
            size = min(step, count - i) * dtype.itemsize
            data = self.files.read(kind, self.shard, offset + i * dtype.itemsize, size)
            checksum.update(data)
            yield i, np.frombuffer(data, dtype)

    def _items(self, kind: str, dtype: np.dtype[Any], start: int, stop: int) -> NDArray[Any]:
        return read_items(self.files, kind, self.shard, dtype, start, stop)

    def whole(self, kind: str) -> str:
        """A file whose content is not looked at."""
        checksum = xxhash.xxh3_64()
        for _ in self._arrays(kind, checksum, "u1", 0, self.size(kind)):
            pass
        return checksum.hexdigest()

    def stream(self) -> tuple[str, str]:
        """Token ids, and record ids of dense tracks. Returns: checksums of the file and of the token column alone."""
        table = self.manifest.shards
        layout = self.manifest.layouts[table.layout[self.shard]]
        checksum, token_checksum = xxhash.xxh3_64(), xxhash.xxh3_64()
        dense = {
            fmt.dense_field(name): int(column.records[self.shard])
            for name, column in table.tracks.items()
            if column.encoding[self.shard] == fmt.DENSE
        }
        limit = self.manifest.num_ids
        offset = int(table.offset[self.shard])
        for _ in self._arrays("stream.bin", checksum, "u1", 0, offset):
            pass
        for i, items in self._arrays("stream.bin", checksum, layout.dtype, offset, self.tokens):
            tokens = items["token"]
            token_checksum.update(tokens.tobytes())
            if tokens.dtype.kind == "i" or limit < 1 << 8 * tokens.dtype.itemsize:
                self._first(tokens < 0, i, tokens, "token", "an id of at least 0")
                self._first(tokens >= limit, i, tokens, "token", f"an id below {limit}, the vocabulary size")
            for field, records in dense.items():
                wrong = (items[field] >= records) & (items[field] != fmt.NO_RECORD)
                self._first(wrong, i, items[field], f"{field} of token", f"a record below {records}")
        end = offset + self.tokens * layout.itemsize
        for _ in self._arrays("stream.bin", checksum, "u1", end, self.size("stream.bin") - end):
            pass
        return checksum.hexdigest(), token_checksum.hexdigest()

    @staticmethod
    def _first(wrong: NDArray[np.bool_], base: int, values: NDArray[Any], what: str, expected: str) -> None:
        if wrong.any():
            i = int(np.argmax(wrong))
            raise FormatError(f"{what} {base + i}: found {int(values[i])}, expected {expected}")

    def _offsets(self, kind: str, checksum: "xxhash.xxh3_64", count: int, last: int, what: str) -> None:
        """`count` + 1 numbers from the beginning of a file: 0 first, then not decreasing, `last` at the end."""
        before = 0
        for i, values in self._arrays(kind, checksum, fmt.OFFSET, 0, count + 1):
            if i == 0 and values[0] != 0:
                raise FormatError(f"{what} 0: found {values[0]}, expected 0")
            joined = np.concatenate([np.array([before], fmt.OFFSET), values])
            self._first(joined[1:] < joined[:-1], i, values, what, "a number that is not below the one before")
            before = int(values[-1])
        if before != last:
            raise FormatError(f"{what} {count}: found {before}, expected {last}")

    def _block_table(
        self,
        kind: str,
        checksum: "xxhash.xxh3_64",
        at: int,
        count: int,
        firsts: Callable[[int, int], NDArray[np.uint64]],
    ) -> None:
        """firsts(a, b): first tokens of items [a, b); item `count` begins at the end of the shard."""
        block = self.manifest.block_tokens
        blocks = fmt.num_blocks(self.tokens, block)
        for start in range(0, blocks, _BLOCKS):
            number = min(_BLOCKS, blocks - start)
            data = self.files.read(kind, self.shard, at + 8 * start, 8 * number)
            checksum.update(data)
            items = np.frombuffer(data, fmt.OFFSET)
            if items[-1] >= count or (items[1:] < items[:-1]).any():
                raise FormatError(f"block table from block {start} on: found numbers that fall or reach {count}")
            low = int(items[0])
            known = np.append(firsts(low, min(int(items[-1]) + 2, count)), np.uint64(self.tokens))
            borders = np.arange(start, start + number, dtype=np.uint64) * np.uint64(block)
            at_items = (items - np.uint64(low)).astype(np.int64)
            wrong = (known[at_items] > borders) | (known[at_items + 1] <= borders)
            self._first(wrong, start, items, "block", "the item that holds the block's first token")
        closing = self.files.read(kind, self.shard, at + 8 * blocks, 8)
        checksum.update(closing)
        if int.from_bytes(closing, "little") != count:
            raise FormatError(f"end of the block table: found {int.from_bytes(closing, 'little')}, expected {count}")

    def documents(self) -> str:
        checksum = xxhash.xxh3_64()
        count = int(self.manifest.shards.documents[self.shard])
        self._offsets("documents.bin", checksum, count, self.tokens, "first token of document")
        firsts = partial(self._items, "documents.bin", fmt.OFFSET)
        self._block_table("documents.bin", checksum, 8 * (count + 1), count, firsts)
        return checksum.hexdigest()

    def spans(self, track: str) -> str:
        checksum = xxhash.xxh3_64()
        kind, column = f"{track}.spans", self.manifest.shards.tracks[track]
        count, records = int(column.entries[self.shard]), int(column.records[self.shard])
        before: tuple[int, int] | None = None
        for i, entries in self._arrays(kind, checksum, fmt.ENTRY, 0, count):
            first, record = entries["first"].astype(np.uint64), entries["record"]
            if before is None and first[0] != 0:
                raise FormatError(f"first token of entry 0: found {first[0]}, expected 0")
            wrong = (record >= records) & (record != fmt.NO_RECORD)
            self._first(wrong, i, record, "record of entry", f"a number below {records}, or 2**32 - 1")
            self._first(first >= self.tokens, i, first, "first token of entry", f"one below {self.tokens}")
            falls, same = first[1:] <= first[:-1], record[1:] == record[:-1]
            if before is not None:
                falls = np.append(falls, first[0] <= before[0])
                same = np.append(same, record[0] == before[1])
            if falls.any() or same.any():
                raise FormatError(
                    f"entries from {i} on: found equal neighbours, expected rising tokens and other records"
                )
            before = int(first[-1]), int(record[-1])

        def firsts(a: int, b: int) -> NDArray[np.uint64]:
            return self._items(kind, fmt.ENTRY, a, b)["first"].astype(np.uint64)

        self._block_table(kind, checksum, fmt.ENTRY.itemsize * count, count, firsts)
        return checksum.hexdigest()

    def index(self, track: str) -> str:
        checksum = xxhash.xxh3_64()
        records = int(self.manifest.shards.tracks[track].records[self.shard])
        self._offsets(f"{track}.index", checksum, records, self.size(f"{track}.data"), "offset")
        return checksum.hexdigest()

    def data(self, track: str, codec: Codec | None) -> str:
        """Records, each checked by its codec if there is one. The index must have been checked before."""
        checksum = xxhash.xxh3_64()
        records = int(self.manifest.shards.tracks[track].records[self.shard])
        for i in range(0, records, 1 << 16):
            number = min(1 << 16, records - i)
            offsets = self._items(f"{track}.index", fmt.OFFSET, i, i + number + 1).astype(np.int64)
            self._first(np.diff(offsets) > fmt.MAX_RECORD_BYTES, i, np.diff(offsets), "size of record", "at most 2**26")
            low = 0
            while low < number:  # as many records as fit, at least one
                high = max(low + 1, int(np.searchsorted(offsets, offsets[low] + _CHUNK, "right")) - 1)
                begin, end = int(offsets[low]), int(offsets[high])
                data = self.files.read(f"{track}.data", self.shard, begin, end - begin)
                checksum.update(data)
                self._records(track, codec, i + low, data, offsets[low : high + 1] - begin)
                low = high
        return checksum.hexdigest()

    def _records(self, track: str, codec: Codec | None, base: int, data: bytes, offsets: NDArray[np.int64]) -> None:
        """Records base, base + 1, ... lie in `data` at `offsets`."""
        entry = self.manifest.tracks[track]
        if isinstance(codec, ConceptsCodec):
            sizes = np.diff(offsets)
            self._first(sizes % 4 != 0, base, sizes, "size of record", "a multiple of 4")
            if entry.max_items is not None:
                self._first(
                    sizes > 4 * entry.max_items, base, sizes, "size of record", f"at most 4 * {entry.max_items}"
                )
            if entry.vocabulary is not None:
                ids = np.frombuffer(data, "<u4")
                rule = f"an id below {entry.vocabulary.count}, the size of the vocabulary"
                self._first(
                    ids >= entry.vocabulary.count, 0, ids, f"concept in the records from {base} on, number", rule
                )
        elif codec is not None:
            view = memoryview(data)
            for n, (a, b) in enumerate(pairwise(offsets.tolist()), start=base):
                try:
                    codec.check(view[a:b])
                except ValueError as error:
                    raise FormatError(f"record {n}: {error}") from error

    def ids(self) -> str:
        """External ids."""
        checksum = xxhash.xxh3_64()
        count = int(self.manifest.shards.documents[self.shard])
        base = 8 * (count + 1)
        total = self.size("documents.ids") - base
        if total < 0:
            raise FormatError(f"found {total + base} bytes, expected at least {base} for {count} documents")
        self._offsets("documents.ids", checksum, count, total, "offset of id")
        for i in range(0, count, 1 << 16):
            step = min(1 << 16, count - i)
            offsets = self._items("documents.ids", fmt.OFFSET, i, i + step + 1)
            begin, end = int(offsets[0]), int(offsets[-1])
            text = self.files.read("documents.ids", self.shard, base + begin, end - begin)
            checksum.update(text)
            for n, (a, b) in enumerate(pairwise((offsets - offsets[0]).tolist()), start=i):
                try:
                    text[a:b].decode("utf-8")
                except UnicodeDecodeError as error:
                    raise FormatError(f"id of document {n}: {error}, expected UTF-8") from error
        return checksum.hexdigest()

    def hashes(self) -> str:
        """The hash table of the external ids. The ids must have been checked before."""
        checksum = xxhash.xxh3_64()
        count = int(self.manifest.shards.documents[self.shard])
        number = self.size("documents.hash") // fmt.HASH_ENTRY.itemsize
        present, last = 0, np.zeros(1, fmt.OFFSET)
        for _, offsets in self._arrays("documents.ids", xxhash.xxh3_64(), fmt.OFFSET, 0, count + 1):
            present += int((np.diff(offsets, prepend=last) != 0).sum())
            last = offsets[-1:]
        if present != number or self.size("documents.hash") % fmt.HASH_ENTRY.itemsize:
            raise FormatError(f"found {number} entries, expected {present}, one per document with an id")
        before = (-1, -1)
        for i, entries in self._arrays("documents.hash", checksum, fmt.HASH_ENTRY, 0, number):
            hashes, ordinals = entries["hash"], entries["ordinal"]
            self._first(ordinals >= count, i, ordinals, "document of hash", f"one below {count}")
            falls = (hashes[1:] < hashes[:-1]) | ((hashes[1:] == hashes[:-1]) & (ordinals[1:] <= ordinals[:-1]))
            if falls.any() or before >= (int(hashes[0]), int(ordinals[0])):
                raise FormatError(f"hashes from {i} on: found falling pairs, expected them sorted by hash, document")
            before = (int(hashes[-1]), int(ordinals[-1]))
            for value, ordinal in entries.tolist():
                if not self._has_hash(ordinal, value):
                    raise FormatError(f"hash of document {ordinal}: found {value}, expected the xxh3-64 of its id")
        return checksum.hexdigest()

    def _has_hash(self, ordinal: int, value: int) -> bool:
        a, b = self._items("documents.ids", fmt.OFFSET, ordinal, ordinal + 2).tolist()
        base = 8 * (int(self.manifest.shards.documents[self.shard]) + 1)
        return a < b and bool(
            xxhash.xxh3_64_intdigest(self.files.read("documents.ids", self.shard, base + a, b - a)) == value
        )
