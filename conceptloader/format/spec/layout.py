"""Constants and arithmetic of the format: names, dtypes, sizes of files. Nothing here touches a file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.lazy import lazy
from conceptloader.errors import FormatError

FORMAT = "conceptstream"
VERSION = 1
"""Of manifests, of builds and of their shards."""
MANIFEST = "manifest.json"
BUILD = "build.json"
CHECKSUMS = "checksums.json"
TOKENIZER = "tokenizer.json"

MODES = ("stream-with-metadata", "token-stream", "document")
READABLE_TOKENS = ("u1", "u2", "u4", "i4", "i8")
WRITTEN_TOKENS = ("u2", "u4")
FIELD_TYPES = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")


NO_RECORD = 2**32 - 1  # the record of a gap: no record belongs to these tokens
MAX_TRACKS = 16
MAX_SHARDS = 1_000_000
MAX_RECORD_BYTES = 1 << 26
MAX_SIZE = 1 << 56  # bytes of a file, tokens of a dataset: no product of a number in a manifest exceeds 2**63
BLOCK_TOKENS = 2048

ENTRY = np.dtype([("first", "<u8"), ("record", "<u4")])
HASH_ENTRY = np.dtype([("hash", "<u8"), ("ordinal", "<u8")])
OFFSET = np.dtype("<u8")

DENSE = "dense"
SPANS = "spans"

# Also keys of a window or parts of file names, hence no track or field may be called so.
RESERVED_NAMES = frozenset(
    {"token", "tokens", "documents", "document", "stream", "manifest", "build", "checksums", "shard"}
)
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
# What was added to a finished dataset; no reader of tokens needs it.
DERIVED = re.compile(rf"{NAME.pattern}\.column\.json|[0-9]{{5,7}}\.{NAME.pattern}\.(column|holes)")


Count = TypeVar("Count", int, NDArray[np.int64])  # of one shard, or of each

# The fix for most corruption.
DAMAGED = "the file is corrupt: restore it from a copy, then run `conceptloader verify DATASET --full`"


def bad(where: str, found: object, expected: str, remedy: str) -> FormatError:
    """The FormatError of this package: what and where, found, expected, what to do."""
    return FormatError(where, str(found), expected, remedy)


def name_problem(name: str) -> str | None:
    """Why `name` cannot be a track or field name, or None."""
    if not NAME.fullmatch(name):
        return "a name of lower-case letters, digits and _ which begins with a letter, at most 63 characters"
    if name in RESERVED_NAMES:
        return f"a name other than {', '.join(sorted(RESERVED_NAMES))}"
    return None


@dataclass(frozen=True)
class StreamLayout:
    """The packed little-endian structure of one item of a stream file: (name, type code) pairs, "token" first."""

    fields: tuple[tuple[str, str], ...]

    @lazy
    def dtype(self) -> np.dtype[np.void]:
        return np.dtype([(name, "<" + code) for name, code in self.fields])

    @property
    def token_type(self) -> str:
        return self.fields[0][1]

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def extra_fields(self, tracks: Iterable[str]) -> dict[str, str]:
        """Names and types of the token-aligned fields which are neither the token nor the record ids of a track."""
        dense = {dense_field(track) for track in tracks}
        return {name: code for name, code in self.fields[1:] if name not in dense}


def make_layout(token_type: str, fields: Mapping[str, str], dense_tracks: Sequence[str]) -> StreamLayout:
    """The layout that this package writes: token, extra fields by name, dense record ids by name."""
    dense = [(dense_field(track), "u4") for track in sorted(dense_tracks)]
    return StreamLayout((("token", token_type), *sorted(fields.items()), *dense))


def dense_field(track: str) -> str:
    return f"{track}_id"


def num_blocks(tokens: Count, block_tokens: int) -> Count:
    return -(-tokens // block_tokens)


def documents_size(tokens: Count, documents: Count, block_tokens: int) -> Count:
    """Bytes of a documents file: starts, one closing start, block table, one closing entry."""
    return 8 * (documents + 1) + 8 * (num_blocks(tokens, block_tokens) + 1)


def spans_size(tokens: Count, entries: Count, block_tokens: int) -> Count:
    """Bytes of a spans file: entries, block table, one closing entry."""
    return ENTRY.itemsize * entries + 8 * (num_blocks(tokens, block_tokens) + 1)


def file_kinds(tracks: Sequence[str]) -> list[str]:
    """Suffixes of all files that a shard may have, in a fixed order. The file of a kind is `<shard path>.<kind>`."""
    kinds = ["stream.bin", "documents.bin", "documents.ids", "documents.hash"]
    for track in tracks:
        kinds += [f"{track}.index", f"{track}.data", f"{track}.spans"]
    return kinds
