"""The columnar shard table of the manifest: one array or list per property, one element per shard."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, checksum_column, int_column, list_column, require, text_column
from conceptloader.format.spec.jsonfile import JsonObject, describe
from conceptloader.format.spec.layout import DAMAGED, StreamLayout, bad


@dataclass
class FileColumn:
    """All files of one kind: size in bytes (-1: the shard has no such file), checksum, None if not known, sample
    checksum of every file, path if not the usual one."""

    size: Ints
    checksum: list[str | None]
    sample: list[str | None]
    path: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.path or [None] * len(self.size)

    @classmethod
    def absent(cls, shards: int) -> "FileColumn":
        return cls(np.full(shards, -1, np.int64), [None] * shards, [None] * shards)

    def to_json(self) -> dict[str, Any]:
        sizes = [None if size < 0 else size for size in self.size.tolist()]
        value: dict[str, Any] = {"size": sizes, "checksum": self.checksum, "sample": self.sample}
        if any(self.path):
            value["path"] = self.path
        return value


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """Where a token file of another library came from. `mtime_ns` is that of the token file when it was adopted, 0 if
    it was not recorded."""

    kind: str
    mtime_ns: int
    index: str | None = None
    index_checksum: str | None = None


@dataclass
class TrackColumn:
    """A track in each shard: encoding ("dense", "spans" or None: no records here), records, entries (spans only)."""

    encoding: list[str | None]
    records: Ints
    entries: Ints

    @classmethod
    def absent(cls, shards: int) -> "TrackColumn":
        return cls([None] * shards, np.zeros(shards, np.int64), np.zeros(shards, np.int64))

    def to_json(self) -> dict[str, Any]:
        return {"encoding": self.encoding, "records": self.records.tolist(), "entries": self.entries.tolist()}


@dataclass
class ShardTable:
    """path: shard prefixes; tokens, layout (index into the manifest's layouts), offset (bytes before the first token
    in the stream file), documents: int64 [shards]; token_checksum: of the token column alone; files: by kind."""

    path: list[str]
    tokens: Ints
    layout: Ints
    offset: Ints
    documents: Ints
    token_checksum: list[str | None]
    files: dict[str, FileColumn]
    tracks: dict[str, TrackColumn] = field(default_factory=dict)
    foreign: list[Foreign | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.foreign = self.foreign or [None] * len(self)

    def __len__(self) -> int:
        return len(self.path)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "path": self.path,
            "tokens": self.tokens.tolist(),
            "layout": self.layout.tolist(),
            "offset": self.offset.tolist(),
            "documents": self.documents.tolist(),
            "token_checksum": self.token_checksum,
            "tracks": {name: self.tracks[name].to_json() for name in sorted(self.tracks)},
            "files": {kind: column.to_json() for kind, column in self.files.items() if (column.size >= 0).any()},
        }
        if any(self.foreign):
            value["foreign"] = [asdict(item) if item else None for item in self.foreign]
        return value


def parse_shards(
    head: JsonObject, count: int, layouts: Sequence[StreamLayout], tracks: Sequence[str], block_tokens: int
) -> ShardTable:
    """Check and convert the "shards" object. Every size that follows from other numbers must agree with them."""
    table = ShardTable(
        path=text_column(head, "path", count),
        tokens=int_column(head, "tokens", count),
        layout=int_column(head, "layout", count, len(layouts) - 1),
        offset=int_column(head, "offset", count),
        documents=int_column(head, "documents", count, 1 << 48),
        token_checksum=checksum_column(head, "token_checksum", count),
        files=_parse_files(head.object("files"), count, tracks),
        tracks=_parse_tracks(head.object("tracks"), count, tracks),
        foreign=_parse_foreign(head, count),
    )
    total = sum(table.tokens.tolist())
    if not 0 < total <= fmt.MAX_SIZE:
        raise bad(head.at("tokens"), f"{total} tokens in all", f"1 to {fmt.MAX_SIZE}", DAMAGED)
    _check_sizes(head, table, layouts, block_tokens)
    head.done()
    return table


def _parse_files(head: JsonObject, count: int, tracks: Sequence[str]) -> dict[str, FileColumn]:
    def parse(entry: JsonObject) -> FileColumn:
        return FileColumn(
            size=int_column(entry, "size", count, nullable=True),
            checksum=checksum_column(entry, "checksum", count),
            sample=checksum_column(entry, "sample", count),
            path=text_column(entry, "path", count, nullable=True, optional=True),
        )

    files = {kind: head.optional(kind, parse) or FileColumn.absent(count) for kind in fmt.file_kinds(tracks)}
    head.done()
    return files


def _parse_tracks(head: JsonObject, count: int, tracks: Sequence[str]) -> dict[str, TrackColumn]:
    columns = {}
    for name in tracks:
        entry = head.object(name)
        encoding = text_column(entry, "encoding", count, nullable=True)
        if not set(encoding) <= {fmt.DENSE, fmt.SPANS, None}:
            i = next(i for i, code in enumerate(encoding) if code not in (fmt.DENSE, fmt.SPANS, None))
            raise bad(entry.at(f"encoding[{i}]"), describe(encoding[i]), '"dense", "spans" or null', DAMAGED)
        columns[name] = TrackColumn(
            encoding=encoding,
            records=int_column(entry, "records", count, fmt.NO_RECORD - 1),
            entries=int_column(entry, "entries", count, 1 << 48),
        )
        entry.done()
    head.done()
    return columns


def _parse_foreign(head: JsonObject, count: int) -> list[Foreign | None]:
    def parse(entry: JsonObject) -> Foreign:
        return Foreign(
            kind=entry.take("kind", str),
            mtime_ns=entry.natural("mtime_ns", (1 << 63) - 1),
            index=entry.take("index", str, None),
            index_checksum=entry.checksum("index_checksum", None),
        )

    values = enumerate(list_column(head, "foreign", count, optional=True))
    return [None if value is None else JsonObject(value, head.at(f"foreign[{i}]")).whole(parse) for i, value in values]


def _check_sizes(head: JsonObject, table: ShardTable, layouts: Sequence[StreamLayout], block_tokens: int) -> None:
    where = head.at("files")

    def check(kind: str, present: Any, expected: Ints) -> None:
        """Files of `kind` are there exactly where `present`, with exactly the expected size."""
        size, wanted = table.files[kind].size, np.where(present, expected, -1)
        require(size == wanted, f"{where}: {kind}: size", size, wanted)

    foreign = np.array([item is not None for item in table.foreign])
    itemsize = np.array([layout.itemsize for layout in layouts], np.int64)[table.layout]
    stream = table.files["stream.bin"].size
    # Compared by division: a product of two hostile numbers could overflow.
    room = np.maximum(stream - table.offset, -1)
    require(room // itemsize >= table.tokens, f"{where}: stream.bin: size", stream, "room for offset + tokens")
    exact = (table.offset == 0) & (room % itemsize == 0) & (room // itemsize == table.tokens)
    require(foreign | exact, f"{where}: stream.bin: size", stream, "exactly tokens * itemsize, at offset 0")

    documents = table.files["documents.bin"].size >= 0
    absent = ~documents & (table.documents > 0)
    require(~absent, head.at("documents"), table.documents, "0 where documents.bin is absent")
    empty = documents & (table.tokens > 0) & (table.documents == 0)
    require(~empty, head.at("documents"), table.documents, "at least 1, since every token is in a document")
    check("documents.bin", documents, fmt.documents_size(table.tokens, table.documents, block_tokens))
    ids, hashes = table.files["documents.ids"].size, table.files["documents.hash"].size
    enough = np.where(ids >= 0, documents & (ids >= 8 * (table.documents + 1)), True)
    require(enough, f"{where}: documents.ids: size", ids, "null, or room for an offset per document of documents.bin")
    together = np.where(ids >= 0, (hashes >= 0) & (hashes % fmt.HASH_ENTRY.itemsize == 0), hashes < 0)
    require(together, f"{where}: documents.hash: size", hashes, "a multiple of 16 exactly where there are ids")
    for name, column in table.tracks.items():
        has = np.array([code is not None for code in column.encoding])
        spans = np.array([code == fmt.SPANS for code in column.encoding])
        field = (fmt.dense_field(name), "u4")
        dense = np.array([field in layout.fields for layout in layouts])[table.layout]
        wanted = np.array([code == fmt.DENSE for code in column.encoding])
        at = f"{head.at('tracks')}: {name}: encoding: layout"
        require(dense | ~wanted, at, table.layout, f"one with the field {field[0]} of type u4")
        check(f"{name}.index", has, 8 * (column.records + 1))
        check(f"{name}.spans", spans, fmt.spans_size(table.tokens, column.entries, block_tokens))
        data = table.files[f"{name}.data"].size
        require((data >= 0) == has, f"{where}: {name}.data: size", data, "a size exactly where the track has records")
        least, most = (spans & (table.tokens > 0)).astype(np.int64), np.where(spans, table.tokens, 0)
        in_range = (column.entries >= least) & (column.entries <= most)
        rule = "1 to the number of tokens with spans, else 0"
        require(in_range, f"{head.at('tracks')}: {name}: entries", column.entries, rule)
    for kind, files in table.files.items():
        sampled = np.array([sample is not None for sample in files.sample])
        require(sampled == (files.size >= 0), f"{where}: {kind}: size", files.size, "null exactly where sample is null")
