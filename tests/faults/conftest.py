"""Shared by the tests of faults."""

import pytest

from tests.corpora.two_shards import write_corpus
from tests.faults.disk import FaultyDisk


@pytest.fixture
def disk(monkeypatch):
    return FaultyDisk(monkeypatch)


@pytest.fixture
def corpus(tmp_path):
    """A dataset of its own for each test: files get damaged here."""
    return write_corpus(tmp_path / "ds")
