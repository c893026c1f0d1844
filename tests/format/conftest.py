"""Shared by the tests of the format."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import conceptloader as cl
from tests.corpora.small import small_corpus


@pytest.fixture(params=["dense", "spans"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[cl.Dataset]:
    """The small corpus in either encoding."""
    with small_corpus().write(tmp_path / "ds", request.param) as ds:
        yield ds
