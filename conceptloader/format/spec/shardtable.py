"""The columnar shard table of the manifest: one array or list per property, one element per shard."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.lazy import lazy
from conceptloader.base.strict import convert, unknown, within
from conceptloader.errors import ConfigError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import (
    Checksums,
    Ints,
    Paths,
    Texts,
    column_of,
    int_column,
    is_there,
    offsets_of,
    refuse,
    require,
    text_column,
)
from conceptloader.format.spec.jsonfile import Checksum
from conceptloader.format.spec.layout import StreamLayout


def _encodings(values: Any, where: str) -> Texts:
    known = (fmt.DENSE, fmt.SPANS, None)
    found = text_column(values, where, nullable=True)
    if not set(found) <= set(known):
        refuse(found, where, lambda code: code in known, '"dense", "spans" or null')
    return found


def _given(values: Any, where: str) -> bool:
    """Whether there is a column that may be omitted."""
    if values == []:
        raise ConfigError(where, "0 elements", "an element for each shard")
    return values is not None


def _own_paths(values: Any, where: str) -> Texts:
    return text_column(values, where, nullable=True) if _given(values, where) else []


def _origins(values: Any, where: str) -> "list[Foreign | None]":
    return list(convert(values, tuple[Foreign | None, ...], where)) if _given(values, where) else []


Kind = TypeVar("Kind", bound="FileColumn")
_Sizes = Annotated[Ints, column_of(int_column)]


@dataclass
class FileColumn:
    """All files of one kind.

    For each shard the size in bytes (-1: it has no such file), checksum, None if not known, sample checksum of every
    file, path if not the usual one.
    """

    size: Annotated[Ints, column_of(int_column, nullable=True)]
    checksum: Checksums
    sample: Checksums
    path: Annotated[Texts, column_of(_own_paths)] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.path or [None] * len(self.size)

    @classmethod
    def absent(cls: type[Kind], shards: int, **more: Any) -> Kind:
        """Of a kind that no shard has so far."""
        return cls(np.full(shards, -1, np.int64), [None] * shards, [None] * shards, **more)

    @property
    def bytes(self) -> int:
        """Of all files; one that several shards have counts once."""
        there = np.flatnonzero(self.size >= 0).tolist()
        return sum({self.path[shard] or shard: int(self.size[shard]) for shard in there}.values())

    def check(self, where: str) -> None:
        """Raises: ConfigError unless the files that are there have samples."""
        rule = "null exactly where sample is null"
        require(is_there(self.sample) == (self.size >= 0), f"{where}.size", self.size, rule)

    def to_json(self) -> dict[str, Any]:
        sizes = [None if size < 0 else size for size in self.size.tolist()]
        value: dict[str, Any] = {"size": sizes, "checksum": [*self.checksum], "sample": [*self.sample]}
        if any(self.path):
            value["path"] = [*self.path]
        return value


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """Where a token file of another library came from.

    `mtime_ns` is that of the token file when it was adopted, 0 if it was not recorded.
    """

    kind: str
    mtime_ns: Annotated[int, within(0, (1 << 63) - 1)]
    index: str | None = None
    index_checksum: Checksum | None = None


@dataclass
class TrackColumn:
    """A track in each shard: encoding ("dense", "spans" or None: no records here), records, entries (spans only)."""

    encoding: Annotated[Texts, column_of(_encodings)]
    records: Annotated[Ints, column_of(int_column, limit=fmt.NO_RECORD - 1)]
    entries: Annotated[Ints, column_of(int_column, limit=1 << 48)]

    @classmethod
    def absent(cls, shards: int) -> "TrackColumn":
        return cls([None] * shards, np.zeros(shards, np.int64), np.zeros(shards, np.int64))

    def encoded(self, encoding: str) -> NDArray[np.bool_]:
        """Where a shard has this encoding: bool [shards]."""
        return np.array([one == encoding for one in self.encoding], np.bool_)

    def to_json(self) -> dict[str, Any]:
        return {"encoding": [*self.encoding], "records": self.records.tolist(), "entries": self.entries.tolist()}


@dataclass
class ShardTable:
    """Columns of all shards.

    path: shard prefixes; tokens, layout (index into the manifest's layouts), offset (bytes before the first token in
    the stream file), documents: int64 [shards]; token_checksum: of the token column alone; files: by kind.
    """

    path: Paths
    tokens: _Sizes
    layout: _Sizes
    offset: _Sizes
    documents: Annotated[Ints, column_of(int_column, limit=1 << 48)]
    token_checksum: Checksums
    files: dict[str, FileColumn]
    tracks: dict[str, TrackColumn]
    foreign: Annotated[list[Foreign | None], column_of(_origins)] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.foreign = self.foreign or [None] * len(self)

    def __len__(self) -> int:
        return len(self.path)

    @lazy
    def starts(self) -> Ints:
        """int64 [shards + 1]: the first token of each shard in the dataset, and the number of tokens."""
        return offsets_of(self.tokens)

    @lazy
    def first_documents(self) -> Ints:
        """int64 [shards + 1]: the number of the first document of each shard, and of all."""
        return offsets_of(self.documents)

    def cut(self, first: int, stop: int) -> "ShardTable":
        """The table of some of its shards."""
        some = slice(first, stop)

        def part(columns: Any) -> Any:
            return type(columns)(*(one[some] for one in vars(columns).values()))

        files, tracks = ({key: part(one) for key, one in all_of.items()} for all_of in (self.files, self.tracks))
        others = {name: one[some] for name, one in vars(self).items() if not isinstance(one, dict)}
        return ShardTable(files=files, tracks=tracks, **others)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "path": [*self.path],
            "tokens": self.tokens.tolist(),
            "layout": self.layout.tolist(),
            "offset": self.offset.tolist(),
            "documents": self.documents.tolist(),
            "token_checksum": [*self.token_checksum],
            "tracks": {name: self.tracks[name].to_json() for name in sorted(self.tracks)},
            "files": {kind: column.to_json() for kind, column in self.files.items() if (column.size >= 0).any()},
        }
        if any(self.foreign):
            value["foreign"] = [asdict(item) if item else None for item in self.foreign]
        return value


def check_shards(table: ShardTable, layouts: Sequence[StreamLayout], tracks: Sequence[str], block_tokens: int) -> None:
    """A table as it was read, in which kinds of files may be omitted: they are added.

    Every size that follows from other numbers must agree with them. Raises: ConfigError.
    """
    count, kinds = len(table), fmt.file_kinds(tracks)
    for name in table.files:
        if name not in kinds:
            raise unknown(f"shards.files.{name}", name, kinds)
    if set(table.tracks) != set(tracks):
        raise ConfigError("shards.tracks", f"{sorted(table.tracks)}", f"{list(tracks)}, as under `tracks` in this file")
    for name, values in _columns(table):
        if len(values) != count:
            raise ConfigError(f"shards.{name}", f"{len(values)} elements", f"{count}, one per shard")
    require(table.layout < len(layouts), "shards.layout", table.layout, f"an index into {len(layouts)} layouts")
    table.files = {kind: table.files.get(kind) or FileColumn.absent(count) for kind in kinds}
    _check_sizes(table, layouts, block_tokens)


def holds(size: Ints, offset: Ints, itemsize: Any, tokens: Ints) -> tuple[Any, Any]:
    """Whether files of these sizes have room for the items of so many tokens after the offset, and for nothing else.

    Compared by division: a product of two hostile numbers could overflow.
    """
    room = np.maximum(size - offset, -1)
    return room // itemsize >= tokens, (offset == 0) & (room % itemsize == 0) & (room // itemsize == tokens)


def _columns(table: ShardTable) -> Iterator[tuple[str, Any]]:
    """All columns that were read, by their path in the table."""
    for one in fields(table):
        if one.name not in ("files", "tracks"):
            yield one.name, getattr(table, one.name)
    column: Any
    for key, column in [*table.files.items(), *table.tracks.items()]:
        place = "files" if key in table.files else "tracks"
        for one in fields(column):
            yield f"{place}.{key}.{one.name}", getattr(column, one.name)


def _check_sizes(table: ShardTable, layouts: Sequence[StreamLayout], block_tokens: int) -> None:

    def check(kind: str, present: Any, expected: Ints) -> None:
        """Files of `kind` are there exactly where `present`, with exactly the expected size."""
        size, wanted = table.files[kind].size, np.where(present, expected, -1)
        require(size == wanted, f"shards.files.{kind}.size", size, wanted)

    foreign = is_there(table.foreign)
    itemsize = np.array([layout.itemsize for layout in layouts], np.int64)[table.layout]
    stream = table.files["stream.bin"].size
    enough, exact = holds(stream, table.offset, itemsize, table.tokens)
    require(enough, "shards.files.stream.bin.size", stream, "room for offset + tokens")
    require(foreign | exact, "shards.files.stream.bin.size", stream, "exactly tokens * itemsize, at offset 0")

    documents = table.files["documents.bin"].size >= 0
    absent = ~documents & (table.documents > 0)
    require(~absent, "shards.documents", table.documents, "0 where documents.bin is absent")
    empty = documents & (table.tokens > 0) & (table.documents == 0)
    require(~empty, "shards.documents", table.documents, "at least 1, since every token is in a document")
    check("documents.bin", documents, fmt.documents_size(table.tokens, table.documents, block_tokens))
    ids, hashes = table.files["documents.ids"].size, table.files["documents.hash"].size
    enough = np.where(ids >= 0, documents & (ids >= 8 * (table.documents + 1)), True)
    require(enough, "shards.files.documents.ids.size", ids, "null, or room for an offset per document of documents.bin")
    together = np.where(ids >= 0, (hashes >= 0) & (hashes % fmt.HASH_ENTRY.itemsize == 0), hashes < 0)
    require(together, "shards.files.documents.hash.size", hashes, "a multiple of 16 exactly where there are ids")
    for name, column in table.tracks.items():
        has, spans, wanted = is_there(column.encoding), column.encoded(fmt.SPANS), column.encoded(fmt.DENSE)
        field = (fmt.dense_field(name), "u4")
        dense = np.array([field in layout.fields for layout in layouts])[table.layout]
        at = f"shards.tracks.{name}.encoding: layout"
        require(dense | ~wanted, at, table.layout, f"one with the field {field[0]} of type u4")
        check(f"{name}.index", has, 8 * (column.records + 1))
        check(f"{name}.spans", spans, fmt.spans_size(table.tokens, column.entries, block_tokens))
        data = table.files[f"{name}.data"].size
        require(
            (data >= 0) == has, f"shards.files.{name}.data.size", data, "a size exactly where the track has records"
        )
        least, most = (spans & (table.tokens > 0)).astype(np.int64), np.where(spans, table.tokens, 0)
        in_range = (column.entries >= least) & (column.entries <= most)
        rule = "1 to the number of tokens with spans, else 0"
        require(in_range, f"shards.tracks.{name}.entries", column.entries, rule)
    for kind, files in table.files.items():
        files.check(f"shards.files.{kind}")
