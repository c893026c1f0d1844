"""What all commands share: results to stdout, logs to stderr, JSON or text.

Every command pays for what is imported here, --help too: what only some need is imported where they do.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

from conceptloader.base.terminal import counted, masked, printable, printable_json
from conceptloader.base.version import PAGES
from conceptloader.errors import ConceptloaderError

if TYPE_CHECKING:
    from conceptloader.format.spec.manifest import Manifest


class Output:
    """Where a command puts its results: text, or one JSON object."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def result(self, value: Any, text: Iterable[str]) -> None:
        """Print `value` as JSON if asked to, else the lines of `text`."""
        if self.as_json:
            plain = (sys.stdout.encoding or "utf-8").lower() not in ("utf-8", "utf8")
            print(printable_json(json.dumps(value, indent=2, ensure_ascii=plain, default=_plain)))
            return
        for line in text:
            print(printable(line))

    def manifest(self, name: str, manifest: "Manifest", more: Mapping[str, Any] = {}, line: str = "") -> None:
        """Print the new dataset, by its `name` on the command line. more: for JSON; line: as text."""
        value = {
            "path": os.path.abspath(name),
            "shards": len(manifest.shards),
            "documents": manifest.num_documents,
            "tokens": manifest.num_tokens,
            "tracks": sorted(manifest.tracks),
            "stream_fingerprint": manifest.stream_fingerprint(),
            **more,
        }
        numbers = {"document": manifest.num_documents, "token": manifest.num_tokens, "shard": len(manifest.shards)}
        counts = ", ".join(counted(number, noun) for noun, number in numbers.items())
        self.result(value, [f"{name}: {line or counts}"])

    def error(self, error: ConceptloaderError, explain: bool = False) -> None:
        """Print an error to stderr, with `explain` where it is explained; with --json also as an object to stdout."""
        if self.as_json:
            self.result({"error": {"kind": type(error).__name__, "code": error.code, "message": str(error)}}, ())
        lines = f"conceptloader: {error}".split("\n")
        if explain:
            lines.append(f"see {PAGES}/troubleshooting.md#{error.code}")
        print("\n  ".join(lines), file=sys.stderr)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numbers and arrays of numpy
        return value.tolist()
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    raise TypeError(f"{type(value).__name__} has no JSON form")


class _Guarded:
    """A stream that may be a terminal.

    Control characters and characters that it cannot encode are escaped, of all writers, argparse and tracebacks
    included. Progress bars may return to the start of their line, before or after the rest of what they write.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        body = text.strip("\r")
        before, _, after = text.partition(body) if body else (text, "", "")
        shown = before + printable(body, keep="\n\t") + after
        self._stream.write(shown.encode(self._encoding, "backslashreplace").decode(self._encoding))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Escape control characters of stdout and stderr in the block."""
    out: Any = _Guarded(sys.stdout)
    err: Any = _Guarded(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        yield


class _Handler(logging.Handler):
    """Logs lines above a progress bar, if any."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(masked(printable(self.format(record), keep="\n")), file=sys.stderr)


def configure_logging(verbose: bool, quiet: bool) -> None:
    """Log warnings to stderr; with `verbose` info too, with `quiet` errors only."""
    logger = logging.getLogger("conceptloader")
    logger.handlers[:] = [_Handler()]
    logger.handlers[0].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logger.setLevel(logging.ERROR if quiet else logging.INFO if verbose else logging.WARNING)


@contextmanager
def progress_bar(quiet: bool, unit: str = "shard") -> Iterator[Callable[[int, int], None]]:
    """Yield progress(done, total), shown as a bar on terminals."""
    from tqdm import tqdm

    with tqdm(unit=unit, disable=quiet or not sys.stderr.isatty()) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> list[str]:
    """Return aligned columns; numbers are right-aligned."""
    shown = [[f"{cell:,}" if isinstance(cell, int) else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *shown, strict=True)]
    right = [bool(rows) and all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True)]
        return "  ".join(aligned).rstrip()

    return [line(header), *map(line, shown)]
