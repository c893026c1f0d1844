"""Compiled code is there from the first batch on."""

import pytest

from conceptloader.batch.warm import load_engine


@pytest.fixture(scope="session", autouse=True)
def _loaded() -> None:
    load_engine()
