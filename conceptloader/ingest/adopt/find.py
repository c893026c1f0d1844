"""Which token files the paths of a call to adopt stand for, and of which library they are."""

import os
from collections.abc import Callable, Sequence

from conceptloader.errors import ConfigError
from conceptloader.format.spec.layout import MAX_SHARDS
from conceptloader.ingest.adopt.datatrove import datatrove_file
from conceptloader.ingest.adopt.flat import flat_file
from conceptloader.ingest.adopt.megatron import megatron_file
from conceptloader.ingest.adopt.source import TokenFile

KINDS = ("auto", "megatron", "datatrove", "flat")
_IN_FOLDERS = {"megatron": (".idx",), "datatrove": (".ds",), "flat": (".npy", ".bin", ".u16", ".u32")}


def find_files(paths: Sequence[str], kind: str, dtype: str | None, document_end: int | None) -> list[TokenFile]:
    """Describe all token files that `paths` stand for. Raises: see `adopt`."""
    if isinstance(paths, str) or not paths:
        raise ConfigError(f"paths: found {paths!r}, expected a list of at least one path")
    if kind not in KINDS:
        raise ConfigError(f"kind: found {kind!r}, expected one of {', '.join(KINDS)}")
    describe: dict[str, Callable[[str], TokenFile]] = {
        "megatron": megatron_file,
        "datatrove": datatrove_file,
        "flat": lambda path: flat_file(path, dtype, document_end),
    }
    chosen = [item for path in paths for item in _expand(path, kind)]
    if len(chosen) > MAX_SHARDS:
        raise ConfigError(f"paths: found {len(chosen)} files, expected at most {MAX_SHARDS}")
    seen: dict[str, str] = {}
    for _, path in chosen:
        real = os.path.realpath(path)
        if real in seen:
            raise ConfigError(f"paths: found {path} twice (also as {seen[real]}), expected each file once")
        seen[real] = path
    flat = any(found == "flat" for found, _ in chosen)
    for name, value in (("dtype", dtype), ("document_end", document_end)):
        if value is not None and not flat:
            raise ConfigError(f"{name}: found {value!r} for files that say it themselves, expected none; leave it out")
    return [describe[found](path) for found, path in chosen]


def _expand(path: str, kind: str) -> list[tuple[str, str]]:
    """(kind, file or prefix) of each token file."""
    if os.path.isdir(path):
        return _expand_folder(path, kind)
    stem, suffix = os.path.splitext(path)
    if kind == "flat":
        return [("flat", path)]
    if kind == "datatrove" or (kind == "auto" and suffix == ".ds"):
        return [("datatrove", path)]
    prefix = stem if suffix in (".bin", ".idx") else path
    if kind == "megatron" or os.path.exists(prefix + ".idx"):
        return [("megatron", prefix)]
    if suffix in (".npy", ".u16", ".u32") and os.path.exists(path):
        return [("flat", path)]
    raise ConfigError(
        f"{path}: found neither PREFIX.bin with PREFIX.idx (Megatron), nor a .ds (datatrove), nor a .npy, expected "
        "one; check the path, or name what it is: --kind megatron, datatrove or flat"
    )


def _expand_folder(folder: str, kind: str) -> list[tuple[str, str]]:
    """The files in a folder. Those in folders below it are an error, since datatrove would leave them out."""
    here, below = [], []
    for root, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            found = _recognize(name, kind)
            if found is not None and root == folder:
                here.append((found, os.path.join(root, os.path.splitext(name)[0] if found == "megatron" else name)))
            elif found is not None:
                below.append(os.path.join(root, name))
    kinds = sorted({found for found, _ in here})
    if len(kinds) > 1:
        raise ConfigError(f"{folder}: found files of {', '.join(kinds)} in it, expected one kind; choose with --kind")
    if below:
        raise ConfigError(f"{folder}: found {below[0]} below it, expected files in it only; name each folder to adopt")
    if not here:
        wanted = "Megatron, datatrove or .npy files" if kind == "auto" else f"files of kind {kind}"
        raise ConfigError(f"{folder}: found no {wanted} in it, expected some; check the path")
    return here


def _recognize(name: str, kind: str) -> str | None:
    """The kind of a file in a folder. A .bin belongs to an .idx, unless the caller says that it is flat."""
    suffix = os.path.splitext(name)[1]
    for candidate in _IN_FOLDERS if kind == "auto" else (kind,):
        if suffix in _IN_FOLDERS[candidate] and not (kind == "auto" and suffix == ".bin"):
            return candidate
    return None
