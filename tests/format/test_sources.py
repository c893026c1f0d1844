"""What reads datasets needs of a source that it gives ranges of files, and nothing else."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import conceptloader as cl
from conceptloader.format.read.files import Files
from conceptloader.storage.source import Range
from conceptloader.testing import random_documents, write_dataset


class Memory:
    """A source that has neither descriptors nor a network."""

    def __init__(self, path: Path) -> None:
        self.content = {str(file): file.read_bytes() for file in path.iterdir()}

    def ranges(self, wanted: Iterable[Range]) -> Iterator[bytes]:
        for file, offset, size in wanted:
            assert len(self.content[file.path]) == file.size
            yield self.content[file.path][offset : offset + size]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "ds", random_documents(40, seed=3), shards=3)
    return tmp_path / "ds"


def test_a_source_that_only_gives_ranges_serves_every_window(data: Path) -> None:
    near, far = cl.open_dataset(data), cl.open_dataset(data)
    far.files = far.reader.files = Files(far.manifest, far.files.roots, Memory(data))
    for mine, theirs in zip(near.windows(50), far.windows(50).__getitems__(range(len(near.windows(50)))), strict=True):
        assert mine["tokens"].tolist() == theirs["tokens"].tolist()
        assert mine["concepts"].values.tolist() == theirs["concepts"].values.tolist()
