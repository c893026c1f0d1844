"""What adopting needs to know about a token file of another library, and bounded reads of index files."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.errors import InputError, remedy
from conceptloader.format.spec import layout as fmt
from conceptloader.storage.reads import open_file, read_at
from conceptloader.storage.sample import WHOLE, sample_checksum

Starts = NDArray[np.uint64]
PIECE = 1 << 17  # index entries or tokens handled at a time

# Names under which other libraries know the token types that version 1 of the format reads.
TOKEN_TYPES = {"uint8": "u1", "uint16": "u2", "uint32": "u4", "int32": "i4", "int64": "i8"}
assert set(TOKEN_TYPES.values()) == set(fmt.READABLE_TOKENS)


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """A token file as it was found: tokens begin at byte `offset`; nothing of them has been read.

    starts: gives the first token of each document in increasing order, in pieces of bounded size, and raises
    InputError for a corrupt index. None: the file says nothing about documents.
    tokenizer: the name that the owning library noted next to the file, if it did. document_end: the token that ends a
    document, where that is what says where they begin.
    """

    kind: str
    path: str
    found: os.stat_result
    token_type: str
    tokens: int
    offset: int = 0
    index: str | None = None
    starts: Callable[[], Iterator[Starts]] | None = None
    tokenizer: str | None = None
    document_end: int | None = None


def noted_tokenizers(files: Sequence[TokenFile]) -> dict[str, Any]:
    """What a manifest keeps of the names in the files."""
    noted = sorted({file.tokenizer for file in files if file.tokenizer})
    return {"adopted_tokenizers": noted} if noted else {}


def stat_file(path: str, fix: str) -> os.stat_result:
    """Raises: InputError for a file that is not there."""
    try:
        return os.stat(path)
    except OSError as error:
        raise InputError(path, f"no readable file ({error.strerror})", "a readable file", remedy(error, fix)) from error


@dataclass(frozen=True, kw_only=True)
class Content:
    """What is in a token file.

    checksum: of the file; tokens: of the tokens alone; both None if only a sample of it was read.
    """

    sample: str
    checksum: str | None = None
    tokens: str | None = None


def read_content(file: TokenFile) -> Content:
    """Read a sample of a token file, or all of it if it is small.

    Raises: InputError if the file was changed since it was described, ReadError.
    """
    with IndexFile(file.path) as source:
        sample = sample_checksum(source.size, source.read)
        content = Content(sample=sample)
        if source.size <= WHOLE:
            tokens = xxhash.xxh3_64_hexdigest(source.read(file.offset, source.size - file.offset))
            content = Content(sample=sample, checksum=sample, tokens=tokens)
    found = stat_file(file.path, "it was there a moment ago")
    now, then = (f"{one.st_size} bytes as of {one.st_mtime_ns} ns" for one in (found, file.found))
    if now != then:
        raise InputError(
            file.path,
            now,
            f"{then}, as when it was looked at first",
            f"run `conceptloader adopt` again when {file.path} is complete",
        )
    return content


class IndexFile:
    """Bounded positioned reads of an index file; use it as a context manager."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = open_file(path)
        self.size = os.fstat(self._descriptor).st_size

    def __enter__(self) -> "IndexFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        return read_at(self._descriptor, offset, size, self.path)

    def array(self, dtype: str, offset: int, start: int, stop: int) -> NDArray[Any]:
        """Items [start, stop) of the array of `dtype` that begins at byte `offset`."""
        kind = np.dtype(dtype)
        return np.frombuffer(self.read(offset + start * kind.itemsize, (stop - start) * kind.itemsize), kind)

    def pieces(self, dtype: str, offset: int, count: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """(first item, items) of an array of `count` items."""
        for start in range(0, count, PIECE):
            yield start, self.array(dtype, offset, start, min(start + PIECE, count))


def last_token(file: TokenFile) -> int | None:
    """None for a file without tokens."""
    with IndexFile(file.path) as stream:
        last = stream.array(f"<{file.token_type}", file.offset, max(0, file.tokens - 1), file.tokens)
    return int(last[0]) if len(last) else None
