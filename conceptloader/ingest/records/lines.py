"""Lines of a file, of a part of a file or of a compressed file, in blocks of bounded size."""

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO

from conceptloader.base.packages import need
from conceptloader.errors import InputError

CHUNK = 1 << 20
MAX_LINE_BYTES = 256 << 20
BOM = b"\xef\xbb\xbf"  # which some editors and exports put in front of UTF-8
# Compressed bytes expanded at a time: to 64 MiB at the worst, since deflate makes 1 kB of a byte, zstd 128 KiB of four.
_STORED = {"gz": 1 << 16, "zst": 1 << 11}


def read_lines(
    path: str, begin: int = 0, end: int | None = None, compression: str | None = None, limit: int = MAX_LINE_BYTES
) -> Iterator[tuple[list[bytes], int]]:
    """Whole lines, without their ends, in blocks of about a MiB; with each block the stored bytes consumed so far.

    begin, end: of an uncompressed file, only the lines whose first byte is in [begin, end). The last line of the file
    need not end in a line feed. compression: None, "gz" or "zst". Lines are not decoded; a byte order mark in front of
    the first one is skipped. Memory: a few times `limit` at most, for any size that compressed data expand to.

    Raises: InputError for a file that cannot be read or decompressed, or a line of more than `limit` bytes.
    """
    count = 0
    try:
        with open(path, "rb", buffering=CHUNK) as file:
            chunks = _decompressed(file, compression) if compression else _ranged(file, begin, end)
            for block in _blocks(chunks, limit):
                lines = block.split(b"\n")
                if not lines[-1]:
                    lines.pop()
                if not begin and not count and lines:
                    lines[0] = lines[0].removeprefix(BOM)
                long = next((i for i, line in enumerate(lines) if len(line) > limit), None)
                if long is not None:
                    raise InputError(
                        f"{path}: line {lines_before(path, begin) + count + long + 1}",
                        f"more than {limit} bytes",
                        f"at most {limit:,} bytes a line",
                        "split the document",
                    )
                at = file.tell()
                yield lines, (at if end is None else min(at, end)) - begin
                count += len(lines)
    except (EOFError, gzip.BadGzipFile, zlib.error, _ZstdError) as error:
        raise InputError(
            f"{path}: after line {count}",
            f"corrupt or truncated {compression} data ({error})",
            "a complete file",
            f"copy {path} again: its {compression} data must be complete",
        ) from error
    except OSError as error:
        raise InputError(
            path,
            f"after line {count}: cannot be read: {error.strerror or error}",
            fix=f"run `chmod u+r {path}`, or check its disk or mount",
        ) from error


def read_blocks(
    path: str, compression: str | None, limit: int = MAX_LINE_BYTES, begin: int = 0, end: int | None = None
) -> Iterator[tuple[list[int], Sequence[bytes], int]]:
    """(numbers of the lines, the first of the piece being 1; lines, blank ones skipped; stored bytes) in blocks.

    Raises: see `read_lines`.
    """
    number = last = 0
    for lines, at in read_lines(path, begin, end, compression, limit):
        some = [i for i, line in enumerate(lines) if line and not line.isspace()]
        kept = lines if len(some) == len(lines) else [lines[i] for i in some]
        yield [number + i + 1 for i in some], kept, at - last
        number, last = number + len(lines), at


def lines_before(path: str, offset: int) -> int:
    """The number of lines that begin before byte `offset`. Reads the file up to there: for messages only."""
    if not offset:
        return 0
    count, left = 1, offset - 1
    with open(path, "rb") as file:
        while left and (chunk := file.read(min(left, 16 * CHUNK))):
            count += chunk.count(b"\n")
            left -= len(chunk)
    return count


def _blocks(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """The chunks, cut so that each block consists of whole lines.

    Of a line that grows over `limit`, more than `limit` bytes are yielded as its whole: the caller rejects it.
    """
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*parts, chunk[:cut]])
            parts, size = [], 0
        parts.append(chunk[cut:])
        size += len(chunk) - cut
        if size > limit:
            yield bytes(limit + len(BOM) + 1)  # what it says does not matter any more
            return
    if size:
        yield b"".join(parts)


def _ranged(file: BinaryIO, begin: int, end: int | None) -> Iterator[bytes]:
    """The lines that begin in [begin, end), a chunk at a time."""
    if begin:  # the line which byte begin - 1 is part of belongs to the piece before
        file.seek(begin - 1)
        for _ in _rest_of_line(file):
            pass
    last = b"\n"
    while chunk := file.read(CHUNK if end is None else max(0, min(CHUNK, end - file.tell()))):
        last = chunk
        yield chunk
    if not last.endswith(b"\n"):
        yield from _rest_of_line(file)


def _rest_of_line(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.readline(CHUNK):
        yield chunk
        if chunk.endswith(b"\n"):
            return


def _decompressed(file: BinaryIO, compression: str) -> Iterator[bytes]:
    """The content of a file of any number of members or frames, about a chunk at a time, however far the data expand.

    At the end of the data, not of a frame: EOFError.
    """
    parts: list[bytes] = []
    size = 0
    try:
        for part in _expanded(file, compression):
            parts.append(part)
            size += len(part)
            if size >= CHUNK:
                held = b"".join(parts)
                yield from (held[at : at + 2 * CHUNK] for at in range(0, size, 2 * CHUNK))  # in one piece: no copy
                parts, size = [], 0
    except Exception:  # which names the line after those that are whole
        yield b"".join(parts)
        raise
    yield b"".join(parts)


def _expanded(file: BinaryIO, compression: str) -> Iterator[bytes]:
    new: Callable[[], Any] = partial(zlib.decompressobj, wbits=31)
    if compression == "zst":
        zstandard = need("zstandard", f"{file.name}: found a .zst file but no zstandard package to read it")
        new = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
    stream: Any = new()  # of no byte: a file of none has been cut off, too
    while data := file.read(_STORED[compression]):
        while data:
            if stream is None and compression == "gz" and not (data := data.lstrip(b"\0")):
                break  # padding behind a member, which gzip skips, too
            stream = stream or new()
            yield stream.decompress(data)
            data = b""
            if stream.eof:
                data, stream = stream.unused_data, None
    if stream is not None:
        raise EOFError("the file ends within it")


try:
    from zstandard import ZstdError as _ZstdError
except ImportError:  # then no .zst file is ever opened

    class _ZstdError(Exception):  # type: ignore[no-redef]
        pass
