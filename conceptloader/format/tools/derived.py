"""Datasets that consist of references to existing files plus a few small new ones: all of it appears, or nothing."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from conceptloader.errors import ConfigError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.jsonfile import load_sealed
from conceptloader.format.spec.manifest import Manifest, parse_manifest
from conceptloader.storage.durable import make_directories, sync_directory, temporary_name, write_file


@contextmanager
def new_directory(out: str | os.PathLike[str]) -> Iterator[str]:
    """A working directory beside `out`, which gets that name when the block ends, and is removed if the block fails.

    Raises: ConfigError if `out` exists and is not an empty directory, ReadError.
    """
    target = os.path.abspath(out)
    if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise ConfigError(f"{target}: found files there, expected a new or empty directory; nothing was changed")
    working = temporary_name(target)
    make_directories(working)
    try:
        yield working
        sync_directory(working)
        os.rename(working, target)
        sync_directory(os.path.dirname(target))
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise


def relative(path: str, out: str | os.PathLike[str]) -> str:
    """`path` as a manifest in the directory `out` refers to it."""
    return os.path.relpath(os.path.abspath(path), os.path.abspath(out))


def write_manifest(manifest: Manifest, directory: str) -> None:
    """Write manifest.json. What readers would refuse is never written: FormatError."""
    target = os.path.join(directory, fmt.MANIFEST)
    data = manifest.dump()
    parse_manifest(load_sealed(data, target))
    write_file(target, data)
