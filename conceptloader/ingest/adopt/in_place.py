"""Token files of a training that knows nothing of datasets: adopted at its first start, by whoever comes first."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from conceptloader.base.hashing import fingerprint
from conceptloader.base.version import PAGES
from conceptloader.errors import ConfigError
from conceptloader.ingest.adopt.adopt import adopt, token_files
from conceptloader.ingest.adopt.megatron import count_sequences
from conceptloader.ingest.adopt.source import IndexFile, stat_file
from conceptloader.storage.durable import write_file
from conceptloader.storage.lock import build_lock
from conceptloader.storage.sample import file_checksum, sample_checksum
from conceptloader.storage.urls import is_url

Blend = tuple[Sequence[str], Sequence[float] | None]
"""Paths as `adopt` takes them, and their weights."""


def datasets_in_place(blend: Blend, cache: str | None, names: Sequence[str] | None = None) -> dict[str, Any]:
    """The keys `datasets` and `allowed_roots` of a configuration that reads these files where they are.

    A dataset is named by the end of its path that no other has, and each is drawn by its weight, none if that is 0;
    weights of one path are added.
    cache: directory for the tables of documents; None for one next to each file, .conceptloader. What lies there is
    used again as long as its files keep size and content, of which samples are read where a time of modification is
    new, and whole indexes; ranks that come at the same time wait for one of them. names: paths of which
    those of the blend are copies, to name the datasets by.

    Raises ConfigError, InputError, ReadError.
    """
    paths, weights = [_absolute(path) for path in blend[0]], blend[1]
    named = paths if names is None else [_absolute(path) for path in names]
    for path in paths:
        if is_url(path):
            raise ConfigError(
                path,
                "a URL",
                "files on a disk",
                f"copy the files to a disk and run `conceptloader adopt`: {PAGES}/token-files.md",
            )
    given: dict[str, tuple[str, float | None]] = {}
    for number, (name, path) in enumerate(zip(named, paths, strict=True)):
        known, weight = given.get(name, (path, 0.0))
        if name in given and (weights is None or known != path):
            fix = f"pass {name} once, or with weights: the weights of one path are added"
            raise ConfigError(name, "twice", "each path once", fix)
        given[name] = path, None if weights is None else (weight or 0.0) + weights[number]
    datasets: dict[str, Any] = {}
    roots: set[str] = set()
    for place, (path, weight) in given.items():
        if weight != 0:
            name = _name(place, named)
            home = os.path.join(os.path.dirname(path), ".conceptloader") if cache is None else os.path.abspath(cache)
            found = {file: stat_file(file, "give the files of a corpus") for file in token_files(path)}
            roots |= {os.path.dirname(one) for file in found for one in (file, os.path.realpath(file))}
            datasets[name] = {"path": _adopted(path, home, name, found, roots), "weight": weight}
    return {"datasets": datasets, "allowed_roots": sorted(roots)}


def divided_documents(paths: Sequence[str]) -> tuple[str, int, int] | None:
    """(index, its sequences, its documents) of the first of Megatron's files whose documents have several sequences."""
    for index in (file for path in paths for file in token_files(path) if file.endswith(".idx")):
        sequences, documents = count_sequences(index)
        if sequences != documents:
            return index, sequences, documents
    return None


def _absolute(path: str) -> str:
    """The prefix of Megatron's files also where one of them is named."""
    stem, suffix = os.path.splitext(path)
    is_one = suffix in (".bin", ".idx") and os.path.exists(f"{stem}.idx")
    return path if is_url(path) else os.path.abspath(stem if is_one else path)


def _name(path: str, paths: Sequence[str]) -> str:
    parts = path.split(os.sep)
    others = [other.split(os.sep) for other in paths if other != path]
    length = next(n for n in range(1, len(parts) + 1) if all(other[-n:] != parts[-n:] for other in others))
    return "-".join(parts[-length:]).replace("@", "_")


def _adopted(path: str, home: str, name: str, found: Mapping[str, os.stat_result], roots: Collection[str]) -> str:
    """The dataset over `path` in `home`, which is there as a whole or not at all; made unless it is."""
    times = {os.path.realpath(file): [status.st_size, status.st_mtime_ns] for file, status in found.items()}
    note = Path(home, f".{name}-{fingerprint(times)[:16]}")
    if (target := _noted(note)) is not None:
        return target
    with build_lock(home, wait=True):
        if (target := _noted(note)) is not None:  # another rank was faster
            return target
        contents = {os.path.realpath(file): _content(file) for file in found}
        target = os.path.join(home, f"{name}-{fingerprint(contents)[:16]}")
        if not os.path.exists(target):
            adopt([path], target, roots=roots, ignore_loss_mask=True)  # as the trainer does
        write_file(str(note), os.path.basename(target).encode())
    return target


def _noted(note: Path) -> str | None:
    """The dataset whose files were seen with these times, if it is there."""
    target = note.with_name(note.read_text()) if note.exists() else None
    return str(target) if target is not None and target.exists() else None


def _content(file: str) -> list[Any]:
    if file.endswith((".idx", ".index")):  # decides where documents begin: no sample will do
        return [os.path.getsize(file), file_checksum(file)]
    with IndexFile(file) as source:
        return [source.size, sample_checksum(source.size, source.read)]
