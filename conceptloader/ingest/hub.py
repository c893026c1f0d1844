"""What the Hugging Face libraries leave on a disk: repositories of the hub, in its cache; saved datasets."""

import os
from types import SimpleNamespace
from typing import Any

from conceptloader.base.packages import need
from conceptloader.errors import InputError

PREFIX = "hub:"
TOKENIZER_FILES = ("*.json", "*.model", "*.jinja", "*.txt")


def fetched(name: str, kind: str, patterns: tuple[str, ...]) -> str:
    """The folder of `hub:OWNER/NAME[/FOLDER][@REVISION]` in the hub's cache on this machine, fetched if need be.

    Any other name is returned as it is. kind: "dataset" or "model"; patterns: of its files. Raises: ConfigError,
    InputError.
    """
    if not name.startswith(PREFIX):
        return name
    hub = need("huggingface_hub", f"{name}: found no huggingface_hub package to fetch it with")
    path, _, revision = name.removeprefix(PREFIX).partition("@")
    owner, repository, *folder = f"{path}/".split("/")
    try:
        found = hub.snapshot_download(
            f"{owner}/{repository}", repo_type=kind, revision=revision or None, allow_patterns=list(patterns)
        )
    except Exception as error:  # of the hub, or of the network below it
        raise InputError(
            name,
            f"cannot be fetched ({type(error).__name__}: {str(error).splitlines()[0]}), expected a {kind} of the hub",
            fix="check name, network and login, or fetch it yourself and give its folder",
        ) from error
    return os.path.join(found, *filter(None, folder))


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
