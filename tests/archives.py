"""Archives of test data: name -> bytes. The same files give the same tar, whoever packs them, when and from where."""

import atexit
import io
import lzma
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

Files = Mapping[str, bytes]


def files_below(root):
    """Every file below a folder, by its path from there."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def tar(files):
    """No times, owners or modes but the default ones; names in order."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            out.addfile(entry, io.BytesIO(data))
    return made.getvalue()


def write(archive, files):
    """A .tar.xz of `files`. Its tar is always the same; how xz packs it may differ with its version."""
    archive.write_bytes(lzma.compress(tar(files), preset=9))


def read_tar(archive):
    return lzma.decompress(archive.read_bytes())


@cache
def read(archive):
    with tarfile.open(fileobj=io.BytesIO(read_tar(archive))) as found:
        return {entry.name: file.read() for entry in found if (file := found.extractfile(entry))}


@cache
def unpacked(archive):
    """A temporary folder with the files of an archive, to be read only; it goes when the process ends."""
    root, process = Path(tempfile.mkdtemp(prefix="conceptloader-tests-")), os.getpid()
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(root))  # not when a fork of it ends
    for name, data in read(archive).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root
