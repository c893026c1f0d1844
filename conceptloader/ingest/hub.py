"""What the Hugging Face libraries leave on a disk: repositories of the hub, in its cache; saved datasets."""

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, InputError

PREFIX = "hub:"
TOKENIZER_FILES = ("*.json", "*.model", "*.jinja", "*.txt")


@dataclass(frozen=True)
class HubName:
    """`hub:OWNER/NAME[/PATH][:SPLIT][@REVISION]`. kind: "dataset" or "model"; path: of a folder or a file in it."""

    given: str
    kind: str
    repository: str
    path: str
    split: str | None
    revision: str | None

    @classmethod
    def parse(cls, given: str, kind: str) -> "HubName":
        name, _, revision = given.removeprefix(PREFIX).partition("@")
        name, _, split = name.partition(":")
        parts = [part for part in name.split("/") if part]
        return cls(given, kind, "/".join(parts[:2]), "/".join(parts[2:]), split or None, revision or None)

    def fetch(self, patterns: Iterable[str]) -> str:
        """Where its path is in the cache of this machine, with the files of these patterns. Raises: InputError."""
        hub = need("huggingface_hub", f"{self.given}: found no huggingface_hub package to fetch it with")
        try:
            found = hub.snapshot_download(
                self.repository, repo_type=self.kind, revision=self.revision, allow_patterns=[*patterns]
            )
        except Exception as error:  # of the hub, or of the network below it
            raise InputError(
                self.given,
                f"nothing that can be fetched ({type(error).__name__}: {str(error).splitlines()[0]})",
                f"a {self.kind} of the hub",
                "check the name, or run `hf auth login`; or run `hf download`, and pass its folder",
            ) from error
        return os.path.join(found, self.path) if self.path else str(found)


def fetched(name: str, kind: str, patterns: tuple[str, ...]) -> str:
    """What a `HubName` is in the hub's cache on this machine, fetched if need be; any other name as it is.

    patterns: of the files that are wanted. Raises: ConfigError, InputError.
    """
    if not name.startswith(PREFIX):
        return name
    hub = HubName.parse(name, kind)
    if hub.split is not None:
        fix = f"pass hub:{hub.repository}/CONFIG/{hub.split}@refs/convert/parquet, which has the files of one split"
        raise ConfigError(name, f"split {hub.split!r} of a {kind}", "hub:OWNER/NAME[/PATH][@REVISION]", fix)
    inside = glob.escape(hub.path)
    return hub.fetch([inside, *(f"{inside}/{pattern}" for pattern in patterns)] if inside else patterns)


class ArrowFile:
    """A file of Arrow's, as `datasets.Dataset.save_to_disk` leaves them (a stream) or with a footer.

    Its record batches stand for row groups: what is used of a ParquetFile.
    """

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        self._map = pa.memory_map(path)
        footer = self._map.read_at(6, 0) == b"ARROW1"
        reader = (pa.ipc.open_file if footer else pa.ipc.open_stream)(self._map)
        self._batches = reader.read_all().to_batches() if footer else list(reader)
        self.schema_arrow, self.metadata = reader.schema, self
        self.num_row_groups = len(self._batches)
        self._check_whole(footer)

    def _check_whole(self, footer: bool) -> None:
        """The file is one stream up to its end mark. pyarrow takes any end of a file for one.

        Raises: OSError.
        """
        import pyarrow as pa

        stream, size = self._map, self._map.size()
        at = 8 if footer else 0
        mark = 8 if stream.read_at(4, at) == b"\xff\xff\xff\xff" else 4  # bytes; 4 before Arrow 0.15
        stream.seek(at)
        try:
            for _ in pa.ipc.MessageReader.open_stream(stream):
                at = stream.tell()
        except (pa.ArrowException, OSError):
            if footer:  # as polars writes files: no stream, but the footer was right
                return
            raise
        if stream.tell() - at != mark:
            raise OSError("the stream has no end mark: it was cut, or its writer did not close it")
        at += mark
        if footer:
            at += int.from_bytes(stream.read_at(4, size - 10), "little") + 10
        while at < size and not footer and not stream.read_at(1 << 20, at).strip(b"\0"):
            at += 1 << 20
        if at < size:
            raise OSError("more follows the end of the stream, as of another one")

    def __enter__(self) -> "ArrowFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    def row_group(self, i: int) -> Any:
        batch = self._batches[i]
        column = SimpleNamespace(total_compressed_size=batch.nbytes)
        return SimpleNamespace(
            num_rows=batch.num_rows, total_byte_size=batch.nbytes, num_columns=1, column=lambda _: column
        )

    def iter_batches(
        self, batch_size: int, row_groups: Any = None, columns: list[str] | None = None, use_threads: bool = False
    ) -> Any:
        for i in range(self.num_row_groups) if row_groups is None else row_groups:
            batch = self._batches[i] if columns is None else self._batches[i].select(columns)
            yield from (batch.slice(at, batch_size) for at in range(0, batch.num_rows, batch_size))
