"""Token files of a training that knows nothing of datasets: adopted at its first start, by whoever comes first."""

import os
from collections.abc import Collection, Sequence
from typing import Any

from conceptloader.base.hashing import fingerprint
from conceptloader.errors import ConfigError
from conceptloader.ingest.adopt.adopt import adopt, token_files
from conceptloader.ingest.adopt.source import stat_file
from conceptloader.storage.lock import build_lock
from conceptloader.storage.stores import is_url

Blend = tuple[Sequence[str], Sequence[float] | None]
"""Paths as `adopt` takes them, and their weights."""


def datasets_in_place(blend: Blend, cache: str | None) -> dict[str, Any]:
    """The keys `datasets` and `roots` of a configuration that reads these files where they are.

    A dataset is named by the end of its path that no other has, and each is drawn by its weight, none if that is 0.
    cache: directory for the tables of documents; None for one beside each file, .conceptloader. What lies there is used
    again as long as its files keep size and time; ranks that come at the same time wait for one of them.

    Raises ConfigError, InputError, ReadError.
    """
    paths, weights = [os.path.abspath(path) if not is_url(path) else path for path in blend[0]], blend[1]
    for path in paths:
        if is_url(path):
            raise ConfigError(f"{path}: found a URL, expected files on a disk; adopt a copy of them: docs/adopt.md")
        if paths.count(path) > 1:
            raise ConfigError(f"{path}: found twice, expected each path once; add up its weights")
    datasets: dict[str, Any] = {}
    roots: set[str] = set()
    for number, path in enumerate(paths):
        weight = None if weights is None else weights[number]
        if weight != 0:
            name = _name(path, paths)
            home = os.path.join(os.path.dirname(path), ".conceptloader") if cache is None else os.path.abspath(cache)
            found = {file: stat_file(file, "give the files of a corpus") for file in token_files(path)}
            roots |= {os.path.dirname(place) for file in found for place in (file, os.path.realpath(file))}
            facts = {os.path.realpath(file): [status.st_size, status.st_mtime_ns] for file, status in found.items()}
            target = os.path.join(home, f"{name}-{fingerprint(facts)[:16]}")
            datasets[name] = {"path": target, "weight": weight}
            _adopt(path, target, roots)
    return {"datasets": datasets, "roots": sorted(roots)}


def _name(path: str, paths: Sequence[str]) -> str:
    parts = path.split(os.sep)
    others = [other.split(os.sep) for other in paths if other != path]
    length = next(n for n in range(1, len(parts) + 1) if all(other[-n:] != parts[-n:] for other in others))
    return "-".join(parts[-length:]).replace("@", "_")


def _adopt(path: str, target: str, roots: Collection[str]) -> None:
    """Make the dataset `target`, which is there as a whole or not at all, unless it is."""
    if not os.path.exists(target):
        with build_lock(os.path.dirname(target), wait=True):
            if not os.path.exists(target):
                adopt([path], target, roots=roots)
