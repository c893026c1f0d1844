"""Shared by the tests of faults."""

from pathlib import Path

import pytest

from tests.corpora.two_shards import write_corpus
from tests.faults.disk import FaultyDisk


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A dataset of its own for each test: files get damaged here."""
    return write_corpus(tmp_path / "ds")
