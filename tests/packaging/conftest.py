"""Installs are made from a copy of the sources with the setuptools at hand: no network, no traces in the checkout."""

import shutil

import pytest

SOURCES = ["setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "conceptloader", "integrations"]


@pytest.fixture(scope="session")
def source(checkout, tmp_path_factory):
    """A copy of what a build needs."""
    copy = tmp_path_factory.mktemp("source") / "conceptloader"
    copy.mkdir()
    for name in SOURCES:
        original = checkout / name
        if original.is_dir():
            shutil.copytree(original, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(original, copy / name)
    return copy
