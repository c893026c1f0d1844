"""Shared by the tests of the format."""

import pytest

from tests.corpora.small import small_corpus


@pytest.fixture(params=["dense", "spans"])
def dataset(request, tmp_path):
    """The small corpus in either encoding."""
    with small_corpus().write(tmp_path / "ds", request.param) as ds:
        yield ds
