"""Content checks of the files of a shard: every byte is read, in order, and hashed on the way.

Findings are FormatErrors whose messages omit the file: verify.py adds it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.errors import FormatError
from conceptloader.format.read.bulk import gather, read_items
from conceptloader.format.read.files import Files
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.codecs import BUILT_IN, Codec, ConceptsCodec, get_codec, is_known, parameter_problem
from conceptloader.format.spec.columnfile import BF16, ItemFiles, holes_kind, holes_size, unpack_holes
from conceptloader.format.spec.columns import offsets_of
from conceptloader.format.spec.layout import DAMAGED

_CHUNK = 1 << 22
_IDS = 1 << 16  # ids that are checked at a time
_BLOCKS = 1 << 10  # blocks of a block table checked at a time; their items are read along


@dataclass
class FileCheck:
    """One file of a shard, read from its beginning to its end."""

    files: Files
    kind: str
    shard: int

    def __post_init__(self) -> None:
        self.manifest, table = self.files.manifest, self.files.table
        self.tokens, self.documents = int(table.tokens[self.shard]), int(table.documents[self.shard])
        self.track = self.kind.rpartition(".")[0]  # if the file is one of a track, or of a column
        self.token_checksum: str | None = None  # of the token column alone
        column = self.files.kinds[self.kind]
        self._first = int(column.offset[self.shard]) if isinstance(column, ItemFiles) else 0
        self._at, self._hash = self._first, xxhash.xxh3_64()

    def check(self) -> str | None:
        """The checksum of the file; None if it is not read from its beginning, since other shards may have it, too.

        Raises: FormatError for what it must not contain.
        """
        (_CHECKS.get(self.kind) or _OF_TRACKS[self.kind.rpartition(".")[2]])(self)
        if self._first:
            return None
        self.skip(self.size_of(self.kind) - self._at)
        return self._hash.hexdigest()

    def size_of(self, kind: str) -> int:
        return int(self.files.kinds[kind].size[self.shard])

    def read(self, size: int) -> bytes:
        """The next bytes."""
        data = self.files.read(self.kind, self.shard, self._at, size)
        self._hash.update(data)
        self._at += size
        return data

    def arrays(self, dtype: Any, count: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """(number of the first item, items) for the next `count` items."""
        dtype = np.dtype(dtype)
        step = max(1, _CHUNK // dtype.itemsize)
        for i in range(0, count, step):
            yield i, np.frombuffer(self.read(min(step, count - i) * dtype.itemsize), dtype)

    def skip(self, size: int) -> None:
        for _ in self.arrays("u1", size):
            pass

    def items(self, kind: str, dtype: np.dtype[Any], start: int, stop: int) -> NDArray[Any]:
        """See read_items: what is not read in order."""
        return read_items(self.files, kind, self.shard, dtype, start, stop)

    def offsets(self, count: int, last: int, what: str) -> None:
        """The next `count` + 1 numbers: 0 first, then not decreasing, `last` at the end."""
        before = 0
        for i, values in self.arrays(fmt.OFFSET, count + 1):
            if i == 0 and values[0] != 0:
                raise FormatError(
                    f"{what} 0",
                    str(values[0]),
                    "0",
                    DAMAGED,
                )
            joined = np.concatenate([np.array([before], fmt.OFFSET), values])
            _first(joined[1:] < joined[:-1], i, values, what, "a number that is not below the one before")
            before = int(values[-1])
        if before != last:
            raise FormatError(
                f"{what} {count}",
                str(before),
                str(last),
                DAMAGED,
            )

    def block_table(self, count: int, firsts: Callable[[int, int], NDArray[np.uint64]]) -> None:
        """firsts(a, b): first tokens of items [a, b); item `count` begins at the end of the shard."""
        block = self.manifest.block_tokens
        blocks = fmt.num_blocks(self.tokens, block)
        for start in range(0, blocks, _BLOCKS):
            number = min(_BLOCKS, blocks - start)
            items = np.frombuffer(self.read(8 * number), fmt.OFFSET)
            if items[-1] >= count or (items[1:] < items[:-1]).any():
                raise FormatError(
                    f"block table from block {start} on",
                    f"numbers that fall or reach {count}",
                    f"ascending numbers below {count}",
                    DAMAGED,
                )
            low = int(items[0])
            known = np.append(firsts(low, min(int(items[-1]) + 2, count)), np.uint64(self.tokens))
            borders = np.arange(start, start + number, dtype=np.uint64) * np.uint64(block)
            at_items = (items - np.uint64(low)).astype(np.int64)
            wrong = (known[at_items] > borders) | (known[at_items + 1] <= borders)
            _first(wrong, start, items, "block", "the item that holds the block's first token")
        closing = int.from_bytes(self.read(8), "little")
        if closing != count:
            raise FormatError(
                "end of the block table",
                str(closing),
                str(count),
                DAMAGED,
            )


def _first(wrong: NDArray[np.bool_], base: int, values: NDArray[Any], what: str, expected: str) -> None:
    if wrong.any():
        i = int(np.argmax(wrong))
        raise FormatError(
            f"{what} {base + i}",
            int(values[i]),
            expected,
            DAMAGED,
        )


def _stream(file: FileCheck) -> None:
    """Token ids, and record ids of dense tracks."""
    table, shard, limit = file.manifest.shards, file.shard, file.manifest.num_ids
    layout = file.manifest.layouts[table.layout[shard]]
    columns = {name: column for name, column in table.tracks.items() if column.encoding[shard] == fmt.DENSE}
    dense = {fmt.dense_field(name): int(column.records[shard]) for name, column in columns.items()}
    checksum = xxhash.xxh3_64()
    file.skip(int(table.offset[shard]))
    for i, items in file.arrays(layout.dtype, file.tokens):
        tokens = items["token"]
        checksum.update(tokens.tobytes())
        if tokens.dtype.kind == "i" or limit < 1 << 8 * tokens.dtype.itemsize:
            _first(tokens < 0, i, tokens, "token", "an id of at least 0")
            _first(tokens >= limit, i, tokens, "token", f"an id below {limit}, the vocabulary size")
        for field, records in dense.items():
            wrong = (items[field] >= records) & (items[field] != fmt.NO_RECORD)
            _first(wrong, i, items[field], f"{field} of token", f"a record below {records}")
    file.token_checksum = checksum.hexdigest()


def _documents(file: FileCheck) -> None:
    file.offsets(file.documents, file.tokens, "first token of document")
    file.block_table(file.documents, partial(file.items, "documents.bin", fmt.OFFSET))


def _spans(file: FileCheck) -> None:
    column = file.manifest.shards.tracks[file.track]
    count, records = int(column.entries[file.shard]), int(column.records[file.shard])
    before: tuple[int, int] | None = None
    for i, entries in file.arrays(fmt.ENTRY, count):
        first, record = entries["first"].astype(np.uint64), entries["record"]
        if before is None and first[0] != 0:
            raise FormatError(
                "first token of entry 0",
                str(first[0]),
                "0",
                DAMAGED,
            )
        wrong = (record >= records) & (record != fmt.NO_RECORD)
        _first(wrong, i, record, "record of entry", f"a number below {records}, or 2**32 - 1")
        _first(first >= file.tokens, i, first, "first token of entry", f"one below {file.tokens}")
        falls, same = first[1:] <= first[:-1], record[1:] == record[:-1]
        if falls.any() or same.any() or (before is not None and (first[0] <= before[0] or record[0] == before[1])):
            raise FormatError(
                f"entries from {i} on",
                "equal neighbours",
                "ascending tokens and other records",
                DAMAGED,
            )
        before = int(first[-1]), int(record[-1])

    def firsts(a: int, b: int) -> NDArray[np.uint64]:
        return file.items(file.kind, fmt.ENTRY, a, b)["first"].astype(np.uint64)

    file.block_table(count, firsts)


def _index(file: FileCheck) -> None:
    records = int(file.manifest.shards.tracks[file.track].records[file.shard])
    file.offsets(records, file.size_of(f"{file.track}.data"), "offset")


def _data(file: FileCheck) -> None:
    """Records, each checked by its codec if that is at hand. The index must have been checked before."""
    track = file.manifest.tracks[file.track]
    usable = is_known(track.codec) and (
        track.codec not in BUILT_IN or parameter_problem(track.codec, track.parameters) is None
    )
    where = f"{file.files.roots.directory}: track {file.track!r}"
    codec = get_codec(track.codec, track.parameters, where) if usable else None
    records = int(file.manifest.shards.tracks[file.track].records[file.shard])
    for i in range(0, records, 1 << 16):
        number = min(1 << 16, records - i)
        offsets = file.items(f"{file.track}.index", fmt.OFFSET, i, i + number + 1).astype(np.int64)
        _first(np.diff(offsets) > fmt.MAX_RECORD_BYTES, i, np.diff(offsets), "size of record", "at most 2**26")
        low = 0
        while low < number:  # as many records as fit, at least one
            high = max(low + 1, int(np.searchsorted(offsets, offsets[low] + _CHUNK, "right")) - 1)
            data = file.read(int(offsets[high] - offsets[low]))
            _records(file, codec, i + low, data, offsets[low : high + 1] - offsets[low])
            low = high


def _records(file: FileCheck, codec: Codec | None, base: int, data: bytes, offsets: NDArray[np.int64]) -> None:
    """Records base, base + 1, ... lie in `data` at `offsets`."""
    entry = file.manifest.tracks[file.track]
    if isinstance(codec, ConceptsCodec):
        sizes, most = np.diff(offsets), entry.max_items
        item = codec.item
        _first(sizes % item != 0, base, sizes, "size of record", f"a multiple of {item}")
        if most is not None:
            _first(sizes > item * most, base, sizes, "size of record", f"at most {item} * {most}")
        if codec.scores is not None:
            _check_each(codec, base, data, offsets)
        ids, what = codec.all_ids(data, sizes), f"concept in the records from {base} on, number"
        _first(ids >= entry.num_ids, 0, ids, what, f"an id below {entry.num_ids}, the size of the vocabulary")
    elif codec is not None:
        _check_each(codec, base, data, offsets)


def _check_each(codec: Codec, base: int, data: bytes, offsets: NDArray[np.int64]) -> None:
    view = memoryview(data)
    for n, (a, b) in enumerate(pairwise(offsets.tolist()), start=base):
        try:
            codec.check(view[a:b])
        except ValueError as error:
            raise FormatError.saying(f"record {n}", f"{error}; {DAMAGED}") from error


def _items(file: FileCheck) -> None:
    """A column: no NaN, and zeros where a token has no value."""
    column, holes = file.files.columns[file.track], holes_kind(file.track)
    lacks = column.holes is not None and column.holes.size[file.shard] >= 0
    step = max(8, _CHUNK // column.itemsize // 8 * 8)
    for i in range(0, file.tokens, step):
        count = min(step, file.tokens - i)
        items = np.frombuffer(file.read(count * column.itemsize), column.stored).reshape(count, -1)
        none = np.asarray(items & 0x7FFF > 0x7F80 if column.dtype == BF16 else items != items).any(1)
        if none.any():
            raise FormatError(
                f"item of token {i + int(none.argmax())}",
                "NaN",
                "a number",
                DAMAGED,
            )
        if lacks:
            bits = file.files.read(holes, file.shard, i // 8, holes_size(count))
            filled = unpack_holes(np.frombuffer(bits, np.uint8))[:count] & items.view(np.uint8).any(1)
            if filled.any():
                raise FormatError(
                    f"item of token {i + int(filled.argmax())}",
                    "a value",
                    f"no value, as {holes} says",
                    DAMAGED,
                )


def _holes(file: FileCheck) -> None:
    data = file.read(holes_size(file.tokens))
    if file.tokens % 8 and data[-1] >> file.tokens % 8:
        raise FormatError(
            "last byte",
            str(data[-1]),
            f"0 in the bits after token {file.tokens - 1}",
            DAMAGED,
        )


def _ids(file: FileCheck) -> None:
    base = 8 * (file.documents + 1)
    total = file.size_of("documents.ids") - base
    if total < 0:
        raise FormatError(
            "",
            f"{total + base} bytes",
            f"at least {base} for {file.documents} documents",
            DAMAGED,
        )
    file.offsets(file.documents, total, "offset of id")
    for i in range(0, file.documents, _IDS):
        offsets = file.items("documents.ids", fmt.OFFSET, i, min(i + _IDS, file.documents) + 1)
        places = (offsets - offsets[0]).astype(np.int64)
        text = file.read(int(places[-1]))
        if not _are_utf8(text, places):
            _check_utf8(text, places, i)


def _are_utf8(text: bytes, places: NDArray[np.int64]) -> bool:
    """Texts that lie end to end, from places[i] to places[i + 1]: all is UTF-8, and no character is cut."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    begins = np.frombuffer(text, np.uint8)[places[places < len(text)]]
    return not ((begins & 0xC0) == 0x80).any()


def _check_utf8(text: bytes, places: NDArray[np.int64], base: int) -> None:
    for n, (a, b) in enumerate(pairwise(places.tolist()), start=base):
        try:
            text[a:b].decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(
                f"id of document {n}",
                f"{error}",
                "UTF-8",
                DAMAGED,
            ) from error


def _hashes(file: FileCheck) -> None:
    """The hash table of the external ids. The ids must have been checked before."""
    size = file.size_of("documents.hash")
    number, present = size // fmt.HASH_ENTRY.itemsize, 0
    for i in range(0, file.documents, _CHUNK // 8):
        offsets = file.items("documents.ids", fmt.OFFSET, i, min(i + _CHUNK // 8, file.documents) + 1)
        present += int((np.diff(offsets) != 0).sum())
    if present != number or size % fmt.HASH_ENTRY.itemsize:
        raise FormatError(
            "",
            f"{number} entries",
            f"{present}, one per document with an id",
            DAMAGED,
        )
    before = (-1, -1)
    for i, entries in file.arrays(fmt.HASH_ENTRY, number):
        hashes, ordinals = entries["hash"], entries["ordinal"]
        _first(ordinals >= file.documents, i, ordinals, "document of hash", f"one below {file.documents}")
        falls = (hashes[1:] < hashes[:-1]) | ((hashes[1:] == hashes[:-1]) & (ordinals[1:] <= ordinals[:-1]))
        if falls.any() or before >= (int(hashes[0]), int(ordinals[0])):
            raise FormatError(
                f"hashes from {i} on",
                "pairs that descend",
                "ascending pairs of hash and document",
                DAMAGED,
            )
        before = (int(hashes[-1]), int(ordinals[-1]))
        _hashes_of(file, hashes, ordinals.astype(np.int64))


def _hashes_of(file: FileCheck, hashes: NDArray[np.uint64], ordinals: NDArray[np.int64]) -> None:
    """These are the hashes of the ids of these documents. They lie anywhere, and are read in their order."""
    order, base = np.argsort(ordinals), 8 * (file.documents + 1)
    for i in range(0, len(order), _IDS):
        some = order[i : i + _IDS]
        documents = ordinals[some]
        ends = gather(file.files, "documents.ids", file.shard, fmt.OFFSET, documents, documents + 2).astype(np.int64)
        low, high = ends[::2], ends[1::2]
        text = gather(file.files, "documents.ids", file.shard, "u1", low, high, base).tobytes()
        places = offsets_of(high - low).tolist()
        found = np.array([xxhash.xxh3_64_intdigest(text[a:b]) for a, b in pairwise(places)], np.uint64)
        wrong = (found != hashes[some]) | (low == high)
        if wrong.any():
            first = some[int(np.argmax(wrong))]
            raise FormatError(
                f"hash of document {ordinals[first]}",
                str(hashes[first]),
                "the xxh3-64 of its id",
                DAMAGED,
            )


_CHECKS = {"stream.bin": _stream, "documents.bin": _documents, "documents.ids": _ids, "documents.hash": _hashes}
_OF_TRACKS = {"index": _index, "data": _data, "spans": _spans, "column": _items, "holes": _holes}
