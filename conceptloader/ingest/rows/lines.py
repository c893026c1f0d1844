"""Lines of a file, of a part of a file or of a compressed file, in blocks of bounded size."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any

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
    the first one is left out. Memory: a few times `limit` at most, whatever compressed data expand to.

    Raises: InputError for a file that cannot be read or decompressed, or a line of more than `limit` bytes.
    """
    count = 0
    try:
        with open(path, "rb", buffering=0) as file:
            read = _decompressed(file, compression) if compression else _ranged(file, begin, end)
            for block in _blocks(read, limit):
                lines = block.split(b"\n")
                if not lines[-1]:
                    lines.pop()
                if not begin and not count and lines:
                    lines[0] = lines[0].removeprefix(BOM)
                long = next((i for i, line in enumerate(lines) if len(line) > limit), None)
                if long is not None:
                    raise InputError(
                        f"{path}: line {lines_before(path, begin) + count + long + 1}: found more than {limit} bytes, "
                        "expected at most that; split the document, or allow longer lines (--max-line-bytes)"
                    )
                at = file.tell()
                yield lines, (at if end is None else min(at, end)) - begin
                count += len(lines)
    except (EOFError, gzip.BadGzipFile, zlib.error, _ZstdError) as error:
        raise InputError(
            f"{path}: after line {count}: found damaged or truncated {compression} data ({error}), expected a complete "
            "file; fetch it again"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: after line {count}: cannot be read: {error.strerror or error}") from error


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


def _blocks(read: Callable[[], bytes | None], limit: int) -> Iterator[bytes]:
    """What `read` returns, until None, cut so that each block consists of whole lines.

    Of a line that grows over `limit`, more than `limit` bytes are handed out as its all: the caller refuses it.
    """
    parts: list[bytes] = []
    size = 0
    while (chunk := read()) is not None:
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


def _ranged(file: io.FileIO, begin: int, end: int | None) -> Callable[[], bytes | None]:
    """Reads the lines that begin in [begin, end), a chunk at a call."""
    last = file.seek(0, io.SEEK_END)
    stop = last if end is None else min(end, last)
    at = begin
    if begin:  # the line which byte begin - 1 is part of belongs to the piece before
        at = begin - 1 + _line_rest(file, begin - 1)
    done = at >= stop

    def read() -> bytes | None:
        nonlocal at, done
        if done:
            return None
        file.seek(at)
        chunk = file.read(min(CHUNK, stop - at) if at < stop else CHUNK)
        if at >= stop:  # the rest of the last line
            chunk = chunk[: chunk.find(b"\n") + 1 or len(chunk)]
            file.seek(at + len(chunk))
        at += len(chunk)
        done = not chunk or at == last or (at >= stop and chunk.endswith(b"\n"))
        return chunk

    return read


def _line_rest(file: io.FileIO, offset: int) -> int:
    """Bytes from `offset` up to and including the next line feed, or to the end of the file."""
    file.seek(offset)
    size = 0
    while chunk := file.read(CHUNK):
        cut = chunk.find(b"\n") + 1
        if cut:
            return size + cut
        size += len(chunk)
    return size


def _decompressed(file: io.FileIO, compression: str) -> Callable[[], bytes | None]:
    """Decompresses a file of any number of members or frames, about a chunk at a call, however far the data expand.

    At the end of the data, not of a frame: EOFError.
    """
    new = _new_gzip if compression == "gz" else _new_zstd(file.name)
    stored = io.BufferedReader(file, CHUNK)
    stream: Any = None
    rest = held = b""
    at = 0

    def expand() -> bytes | None:
        nonlocal stream, rest
        data = rest or stored.read(_STORED[compression])
        rest = b""
        if not data:
            if stream is not None:
                raise EOFError("the file ends within it")
            return None
        if stream is None:
            stream = new()
        decompressed: bytes = stream.decompress(data)
        if stream.eof:
            rest, stream = stream.unused_data, None
        return decompressed

    def read() -> bytes | None:
        nonlocal held, at
        if at == len(held):
            parts: list[bytes] = []
            size = 0
            while size < CHUNK and (part := expand()) is not None:
                parts.append(part)
                size += len(part)
            if not parts:
                return None
            held, at = b"".join(parts), 0
        found = held[at : at + 2 * CHUNK]  # of what has expanded far; else all of it, and no copy
        at += len(found)
        return found

    return read


def _new_gzip() -> Any:
    return zlib.decompressobj(wbits=31)


def _new_zstd(path: Any) -> Callable[[], Any]:
    zstandard = need("zstandard", f"{path}: found a .zst file but no zstandard package to read it")
    return lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()


try:
    from zstandard import ZstdError as _ZstdError
except ImportError:  # then no .zst file is ever opened

    class _ZstdError(Exception):  # type: ignore[no-redef]
        pass
