"""Versions of trainers that nobody has tried yet."""

import importlib.metadata
import logging

import pytest

from conceptloader.base.packages import imported
from conceptloader.base.tested import TESTED, warn_untested


@pytest.fixture(autouse=True)
def _as_in_a_new_process():
    warn_untested.cache_clear()


def test_a_newer_version_is_one_warning_that_names_both(monkeypatch, caplog):
    oldest, newest = TESTED["lightning"]
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "99.1.0.dev2")
    for _ in range(3):
        with imported("lightning_lm", "pip install lightning", "lightning"):
            pass
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith("lightning 99.1.0.dev2 is newer than the versions that this release of concept")
    assert f"{oldest} to {newest}" in record.message
    assert "docs/versions.md" in record.message


@pytest.mark.parametrize("found", ["2.5.0", f"{TESTED['lightning'][1]}.999", "0.0.0+unknown", "rc"])
def test_known_patch_and_older_releases_are_silent(found, caplog):
    warn_untested("lightning", found)
    assert not caplog.records


def test_other_ranks_are_silent(monkeypatch, caplog):
    monkeypatch.setenv("RANK", "1")
    warn_untested("lightning", "99.0")
    assert not caplog.records
