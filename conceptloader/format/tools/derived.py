"""Datasets that refer to the files of others, plus a few small new ones: their directory, paths and manifest."""

import fcntl
import logging
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from itertools import chain
from typing import Any

import numpy as np

from conceptloader.errors import ConfigError
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.paths import Roots
from conceptloader.storage.durable import TEMPORARY, make_directories, sync_directory, temporary_name

log = logging.getLogger(__name__)


@contextmanager
def new_directory(out: str | os.PathLike[str]) -> Iterator[str]:
    """A working directory next to `out`, which gets that name when the block ends, and is removed if the block fails.

    Those of processes that were killed are removed before.

    Raises: ConfigError if `out` exists and is not an empty directory, ReadError.
    """
    target = os.path.abspath(out)
    check_new_directory(target)
    working = temporary_name(target)
    remove_abandoned(target)
    make_directories(working)
    descriptor = os.open(working, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(descriptor)
        yield working
        sync_directory(working)
        os.rename(working, target)
        sync_directory(os.path.dirname(target))
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def remove_abandoned(target: str) -> None:
    """Remove what was to become `target`, of processes that were killed.

    An empty one may not be locked yet; where there are no locks all of them stay.
    """
    parent, name = os.path.split(target)
    for path in (os.path.join(parent, one) for one in (os.listdir(parent) if os.path.isdir(parent) else [])):
        found = TEMPORARY.fullmatch(os.path.basename(path))
        with suppress(OSError):
            if found is not None and found["name"] == name and os.listdir(path):
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    if _lock(descriptor):
                        shutil.rmtree(path)
                finally:
                    os.close(descriptor)


def _lock(directory: int) -> bool:
    """Lock it by this descriptor, until that is closed. Returns: whether it is locked now."""
    with suppress(OSError):
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def check_new_directory(path: str) -> None:
    """Raises: ConfigError unless `path` is absent or an empty directory."""
    if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise ConfigError(path, "files there", "a new or empty directory", "pass another --out: nothing was changed")


def warn_of_roots(manifest: Manifest, out: str, allowed: Collection[str] = ()) -> None:
    """Tell which directories have to be allowed when the dataset in `out` is opened, if some have."""
    roots, table = Roots(out, tuple(allowed) or None), manifest.shards
    paths = [*table.path, *(path for column in table.files.values() for path in column.path if path)]
    folders = {roots.resolve(os.path.dirname(path)) for path in paths}
    outside = sorted(folder for folder in folders if not roots.allows(folder))
    if outside:
        root = os.path.commonpath(outside)
        root = outside[0] if root == os.sep else root
        log.warning(
            "%s refers to files in %s, which is not below %s: to open it, allow that, by allowed_roots: [%s] in the "
            "configuration, --root %s of a command, or roots=[...] in Python",
            *(out, root, os.path.dirname(out), root, root),
        )


def moved_path(path: str, directory: str, out: str | os.PathLike[str]) -> str:
    """A path of a dataset in `directory`, as one in the directory `out` has it."""
    return path if os.path.isabs(path) else os.path.relpath(os.path.join(directory, path), out)


def end_to_end(parts: Sequence[Any], **given: Any) -> Any:
    """One object of the columns, arrays and lists, of several of its kind; `given`: what is not such a column."""
    for item in fields(parts[0]):
        if item.name not in given:
            columns = [getattr(part, item.name) for part in parts]
            given[item.name] = np.concatenate(columns) if isinstance(columns[0], np.ndarray) else [*chain(*columns)]
    return type(parts[0])(**given)


def moved(manifest: Manifest, directory: str, out: str | os.PathLike[str]) -> Manifest:
    """The manifest of a dataset in `directory`, as one in the directory `out` refers to the same files."""

    def path(found: str) -> str:
        return moved_path(found, directory, out)

    table = manifest.shards
    foreign = [item and replace(item, index=item.index and path(item.index)) for item in table.foreign]
    files = {
        kind: replace(column, path=[given and path(given) for given in column.path])
        for kind, column in table.files.items()
    }
    given = manifest.tracks.items()
    tracks = {name: replace(one, vocabulary=one.vocabulary and one.vocabulary.moved(path)) for name, one in given}
    shards = replace(table, path=[path(one) for one in table.path], files=files, foreign=foreign)
    return replace(manifest, tracks=tracks, shards=shards)
