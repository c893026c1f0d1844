"""Vocabulary files: the names of concepts, a JSON list whose index is the concept id."""

from collections.abc import Sequence

import xxhash

from conceptloader.base.hashing import canonical_json
from conceptloader.format.spec.jsonfile import parse_json
from conceptloader.format.spec.layout import DAMAGED, bad
from conceptloader.format.spec.manifest import Vocabulary
from conceptloader.format.spec.paths import Roots


def dump_vocabulary(names: Sequence[str]) -> bytes:
    """The file's bytes: one name per line."""
    return ("[\n" + ",\n".join(canonical_json(name) for name in names) + "\n]\n").encode("ascii")


def describe_vocabulary(data: bytes, path: str, count: int) -> Vocabulary:
    """What a manifest says of the file `path` with these bytes."""
    return Vocabulary(path=path, size=len(data), checksum=xxhash.xxh3_64_hexdigest(data), count=count)


def load_vocabulary(roots: Roots, entry: Vocabulary) -> list[str]:
    """The names. Raises: FormatError for a file that is not the one the manifest means, ReadError."""
    path = roots.resolve(entry.path)
    data = roots.read_whole(path, entry.size)
    checksum = xxhash.xxh3_64_hexdigest(data)
    if checksum != entry.checksum:
        raise bad(path, f"checksum {checksum}", f"{entry.checksum} as the manifest says", "restore the file")
    names = parse_json(data, path)
    if not isinstance(names, list) or len(names) != entry.count or not all(isinstance(name, str) for name in names):
        raise bad(path, "something else", f"a list of {entry.count} names", DAMAGED)
    return names
