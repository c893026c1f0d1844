"""Vocabulary files: the names of concepts, a JSON list whose index is the concept id; their groups and details."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import xxhash

from conceptloader.base.hashing import canonical_json
from conceptloader.base.strict import within
from conceptloader.format.spec.jsonfile import Checksum, Size, parse_json
from conceptloader.format.spec.layout import DAMAGED, bad
from conceptloader.format.spec.paths import Roots


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A JSON list of names, index = concept id; `path` is relative to the dataset's directory.

    groups: (name, number of concepts), in the order of their ids, which they partition. details: the file that says
    more of each concept, if there is one.
    """

    path: str
    size: Size
    checksum: Checksum
    count: Annotated[int, within(0, 1 << 32)]
    groups: tuple[tuple[str, int], ...] = ()
    details: "Details | None" = None

    @property
    def files(self) -> "list[Vocabulary | Details]":
        return [self, *([self.details] if self.details else [])]

    @property
    def paths(self) -> list[str]:
        return [file.path for file in self.files]

    def moved(self, path: Callable[[str], str]) -> "Vocabulary":
        """The same files, as seen from elsewhere."""
        details = self.details and replace(self.details, path=path(self.details.path))
        return replace(self, path=path(self.path), details=details)


@dataclass(frozen=True, kw_only=True)
class Details:
    """A JSON object a line, line = concept id; `path` is relative to the dataset's directory."""

    path: str
    size: Size
    checksum: Checksum


def groups_problem(groups: Sequence[tuple[str, int]], count: int) -> str | None:
    """What is expected of the groups of a vocabulary of `count` concepts, None for groups that are right."""
    names, numbers = [name for name, _ in groups], [number for _, number in groups]
    distinct = "" not in names and len(set(names)) == len(names)
    if distinct and min(numbers, default=0) >= 0 and (not groups or sum(numbers) == count):
        return None
    return f"[name, number] pairs of distinct names, whose numbers have the sum {count}, that of the concepts"


def dump_vocabulary(names: Sequence[str]) -> bytes:
    """The file's bytes: one name per line."""
    return ("[\n" + ",\n".join(canonical_json(name) for name in names) + "\n]\n").encode("ascii")


def describe_vocabulary(
    track: str,
    names: Sequence[str],
    groups: Sequence[tuple[str, int]] = (),
    details: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[Vocabulary, dict[str, bytes]]:
    """(what a manifest says of a track's concepts, the files with that by name). details: of each concept, JSON."""
    data, path = dump_vocabulary(names), f"{track}.vocabulary.json"
    files, more = {path: data}, None
    if details is not None:
        lines = [json.dumps(one, separators=(",", ":"), ensure_ascii=True, allow_nan=False) for one in details]
        text, name = "".join(f"{line}\n" for line in lines).encode("ascii"), f"{track}.details.jsonl"
        files[name] = text
        more = Details(path=name, size=len(text), checksum=xxhash.xxh3_64_hexdigest(text))
    entry = Vocabulary(
        path=path, size=len(data), checksum=xxhash.xxh3_64_hexdigest(data), count=len(names), groups=tuple(groups),
        details=more,
    )  # fmt: skip
    return entry, files


@dataclass(frozen=True, kw_only=True)
class Concept:
    """id: in the records of its track.

    group: the part of the vocabulary that it belongs to, None if there are none. details: what else the dataset says of
    it.
    """

    id: int
    name: str
    group: str | None
    details: Mapping[str, Any]


def load_concepts(roots: Roots, entry: Vocabulary) -> list[Concept]:
    """All concepts, index = id. Raises: FormatError for files that are not those the manifest means, ReadError."""
    names, details = load_vocabulary(roots, entry), load_details(roots, entry)
    groups: Sequence[str | None] = [name for name, n in entry.groups for _ in range(n)] or [None] * entry.count
    of = details if details is not None else [{}] * entry.count
    return [Concept(id=i, name=names[i], group=groups[i], details=of[i]) for i in range(entry.count)]


def load_details(roots: Roots, entry: Vocabulary) -> list[dict[str, Any]] | None:
    """What else is known of each concept, None without such a file. Raises: see load_vocabulary."""
    if entry.details is None:
        return None
    path = roots.resolve(entry.details.path)
    lines = _read(roots, path, entry.details).split(b"\n")
    found = [parse_json(line, f"{path}: line {i}") for i, line in enumerate(lines[:-1], 1)]
    if lines[-1] or len(found) != entry.count or not all(isinstance(one, dict) for one in found):
        raise bad(path, "something else", f"{entry.count} lines with an object each", DAMAGED)
    return found


def _read(roots: Roots, path: str, entry: Vocabulary | Details) -> bytes:
    data = roots.read_whole(path, entry.size)
    checksum = xxhash.xxh3_64_hexdigest(data)
    if checksum != entry.checksum:
        raise bad(path, f"checksum {checksum}", f"{entry.checksum} as the manifest says", "restore the file")
    return data


def load_vocabulary(roots: Roots, entry: Vocabulary) -> list[str]:
    """The names. Raises: FormatError for a file that is not the one the manifest means, ReadError."""
    path = roots.resolve(entry.path)
    names = parse_json(_read(roots, path, entry), path)
    if not isinstance(names, list) or len(names) != entry.count or not all(isinstance(name, str) for name in names):
        raise bad(path, "something else", f"a list of {entry.count} names", DAMAGED)
    return names
