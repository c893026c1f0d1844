"""A column: an item of fixed size for each token, in files of its own. NAME.column.json describes it."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.hashing import fingerprint
from conceptloader.base.lazy import lazy
from conceptloader.base.strict import Natural, Rule, within
from conceptloader.errors import ConfigError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, column_of, int_column, is_there, require
from conceptloader.format.spec.jsonfile import JsonFile, describe, dump_json
from conceptloader.format.spec.layout import bad
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.shardtable import FileColumn, holds

FORMAT = "conceptstream-column"
VERSION = 1
FILE = re.compile(rf"({fmt.NAME.pattern})\.column\.json")
BF16 = "bf16"  # numpy has no such type: u2 with the same bits
TYPES = (*fmt.FIELD_TYPES, BF16)
MAX_ITEM = 1 << 20  # bytes
_REPLACED = (
    "it belongs to other tokens: restore the dataset, or run `conceptloader column DATASET NAME --remove` and write it "
    "again"
)


def column_file(name: str) -> str:
    return f"{name}.column.json"


def items_kind(name: str) -> str:
    """The kind of file that holds items, as in a shard table: `<shard path>.<kind>`."""
    return f"{name}.column"


def holes_kind(name: str) -> str:
    """The kind of file that says which tokens have no value."""
    return f"{name}.holes"


def holes_size(tokens: Any) -> Any:
    """Bytes of a file of holes: a bit for each token, of one shard or of each."""
    return -(-tokens // 8)


def pack_holes(missing: Any) -> bytes:
    """A file of holes from bool [tokens] of a shard: token t is bit t % 8 of byte t // 8."""
    return np.packbits(missing, bitorder="little").tobytes()


def unpack_holes(data: Any) -> "NDArray[np.bool_]":
    """Of n bytes of such a file: bool [8 * n], whether each token has no value."""
    return np.unpackbits(data, bitorder="little").view(np.bool_)


@dataclass
class ItemFiles(FileColumn):
    """The files of items, an element for each shard. offset: bytes before the first item."""

    offset: Annotated[Ints, column_of(int_column)] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.offset = self.offset if len(self.offset) else np.zeros(len(self.size), np.int64)

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), **({"offset": self.offset.tolist()} if self.offset.any() else {})}


@dataclass
class HoleFiles(FileColumn):
    """The files of holes, an element for each shard.

    tokens: without a value, in these files. starts: how many of them begin a document, or a shard without documents.
    """

    tokens: Natural = field(kw_only=True)
    starts: Natural = field(kw_only=True)

    def to_json(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "starts": self.starts, **super().to_json()}


@dataclass(frozen=True, kw_only=True)
class ColumnFile:
    """NAME.column.json, apart from `format` and `version`.

    Attributes:
        dtype: Of an element of an item, one of TYPES.
        shape: Of an item: (), (k,) or (k, l).
        stream_fingerprint: Of the dataset whose tokens have these items.
        files: Of the items; a shard without one has no values.
        holes: Of tokens without a value in shards that have values; None: each token has one.
        created_by: For people.
        extra: Free for whoever wrote the column.
    """

    dtype: Annotated[str, Rule(lambda value: value in TYPES, f"that is one of {', '.join(TYPES)}")]
    shape: tuple[Annotated[int, within(1, MAX_ITEM)], ...] = ()
    stream_fingerprint: str
    files: ItemFiles
    holes: HoleFiles | None = None
    created_by: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.shape) > 2 or self.itemsize > MAX_ITEM:
            rule = f"at most 2 numbers, and at most {MAX_ITEM} bytes for a token"
            raise ConfigError("shape", f"{list(self.shape)} of {self.dtype}", rule)

    @lazy
    def stored(self) -> "np.dtype[Any]":
        """The type of an element as numpy reads it."""
        return np.dtype("<u2" if self.dtype == BF16 else f"<{self.dtype}")

    @property
    def item(self) -> str:
        """The type of the item of a token, for people."""
        return f"{self.dtype}{list(self.shape) if self.shape else ''}"

    @property
    def itemsize(self) -> int:
        """Bytes of the item of a token."""
        return int(self.stored.itemsize) * math.prod(self.shape)

    @lazy
    def fingerprint(self) -> str:
        """Equal for columns with the same values of the same tokens."""
        holes = self.holes
        return fingerprint(
            [
                *(FORMAT, VERSION, self.dtype, list(self.shape), self.stream_fingerprint),
                _contents(self.files, self.files.offset.tolist()),
                _contents(holes, [0] * len(holes.size)) if holes else None,
            ]
        )

    def kinds(self, name: str) -> dict[str, FileColumn]:
        """Its kinds of files, as in a shard table."""
        return {items_kind(name): self.files, **({holes_kind(name): self.holes} if self.holes else {})}

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "created_by": self.created_by,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "stream_fingerprint": self.stream_fingerprint,
            "files": self.files.to_json(),
            "holes": self.holes and self.holes.to_json(),
            "extra": dict(self.extra),
        }

    def dump(self) -> bytes:
        """The file's bytes."""
        return dump_json(self.to_json())

    def check(self, name: str, manifest: Manifest) -> None:
        """Whether it can be the column `name` of a dataset. Raises: ConfigError."""
        if problem := column_problem(name, manifest):
            raise ConfigError("", f"a column called {name!r}", problem, "pass another NAME for the column")
        tokens = manifest.shards.tokens
        for key, files in (("files", self.files), ("holes", self.holes)):
            for column, values in vars(files).items() if files else ():
                if column not in ("tokens", "starts") and len(values) != len(tokens):
                    raise ConfigError(f"{key}.{column}", f"{len(values)} elements", f"{len(tokens)}, one per shard")
            if files:
                files.check(key)
        size, there = self.files.size, self.files.size >= 0
        enough, exact = holds(size, self.files.offset, self.itemsize, tokens)
        require(~there | enough, "files.size", size, "room for offset + an item per token")
        elsewhere = is_there(self.files.path)
        require(~there | exact | elsewhere, "files.size", size, "exactly tokens * itemsize, at offset 0")
        if self.holes:
            size, here = self.holes.size, self.holes.size >= 0
            require(~here | there, "holes.size", size, "null where there are no values")
            require(~here | (size == holes_size(tokens)), "holes.size", size, "a bit for each token")
            if not self.holes.starts <= self.holes.tokens <= int(tokens[here].sum()):
                found = f"{self.holes.tokens}, of which {self.holes.starts} begin a document"
                raise ConfigError("holes.tokens", found, "starts <= tokens <= those of the shards with holes")


def _contents(files: FileColumn, offsets: list[int]) -> list[Any]:
    rows = zip(files.size.tolist(), offsets, files.checksum, files.sample, strict=True)
    return [None if size < 0 else [size, offset, checksum or sample] for size, offset, checksum, sample in rows]


def column_problem(name: str, manifest: Manifest) -> str | None:
    """Why no column of the dataset can be called so, or None."""
    taken = {*manifest.layouts[0].extra_fields(manifest.tracks), *manifest.tracks}
    return fmt.name_problem(name) or ("a name that no field and no track has" if name in taken else None)


def parse_column(head: JsonFile, name: str, manifest: Manifest) -> ColumnFile:
    """Check a NAME.column.json against the manifest of the dataset next to it. Raises: FormatError."""
    column = head.parse(ColumnFile, FORMAT, VERSION)
    tokens = manifest.stream_fingerprint()
    if column.stream_fingerprint != tokens:
        found = describe(column.stream_fingerprint)
        raise bad(f"{head.where}: stream_fingerprint", found, f"{tokens}, that of the dataset", _REPLACED)
    with head.named():
        column.check(name, manifest)
    return column
