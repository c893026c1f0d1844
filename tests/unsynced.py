"""A fixture for the tests of what builds many small datasets."""

import os
from collections.abc import Iterator

import pytest

from conceptloader.storage import durable


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Syncing is most of the time of small builds. That it happens, and in which order, test_durability.py shows."""
    patch = pytest.MonkeyPatch()
    patch.setattr(durable.os, "fsync", lambda descriptor: os.fstat(descriptor))
    yield
    patch.undo()
