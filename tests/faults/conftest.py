"""Shared by the tests of faults."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conceptloader.storage import reads as io
from tests.corpora.two_shards import write_corpus
from tests.faults.disk import FaultyDisk


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch)


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Path]:
    """A dataset of its own for each test: files get damaged here."""
    yield write_corpus(tmp_path / "ds")
    for cache in list(io._caches):
        cache.drop(lambda _: True)
