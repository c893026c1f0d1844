"""shards.derived.bin: a manifest of many shards as arrays, which a process maps instead of parsing the JSON.

It is made of manifest.json and says of which; the manifest alone is the truth. docs/format.md has the bytes.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.errors import ConfigError, ReadError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, require
from conceptloader.format.spec.jsonfile import Checksum, JsonFile, Size, parse_json
from conceptloader.format.spec.manifest import Manifest, parse_manifest
from conceptloader.format.spec.packed import Coded, Hexes, Packed, Paths, everywhere, is_there, nothing
from conceptloader.format.spec.shardtable import Foreign, ShardTable
from conceptloader.kernels.records import SHARD
from conceptloader.storage.durable import write_file
from conceptloader.storage.reads import named

MAGIC = b"conceptshards 1\n"  # another one when anything is derived in another way, the fingerprints included
LEAST = 1 << 18  # bytes of a manifest: smaller ones are parsed in milliseconds
_HEAD = len(MAGIC) + 16  # bytes before the JSON
_ENCODINGS = (fmt.DENSE, fmt.SPANS)
Buffer = NDArray[np.uint8]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """An array in the file: its first byte, and its elements, of which one may stand for all."""

    at: Size
    count: Size


@dataclass(frozen=True, kw_only=True)
class _Head:
    """size, checksum: of the manifest, see JsonFile.seal; value: what it says, without its shards."""

    size: Size
    checksum: Checksum
    stream_fingerprint: str
    tracks_fingerprint: str
    value: Mapping[str, Any]
    kinds: tuple[str, ...]
    words: Mapping[str, tuple[str, ...]]
    arrays: Mapping[str, _Place]


class Origins(Packed):
    """Where token files of other libraries came from: the columns of Foreign."""

    def __init__(self, kinds: Coded, times: Ints, indices: Packed, checksums: Packed) -> None:
        super().__init__(kinds.there)
        self.kinds, self.times, self.indices, self.checksums = kinds, times, indices, checksums

    def _at(self, k: int) -> Foreign:
        index, checksum = self.indices[k], self.checksums[k]
        return Foreign(kind=self.kinds[k], mtime_ns=int(self.times[k]), index=index, index_checksum=checksum)


def indices_of(foreign: Sequence[Foreign | None]) -> Sequence[str | None]:
    """A column of Foreign."""
    if isinstance(foreign, Packed):
        return foreign.indices if isinstance(foreign, Origins) else foreign
    return [one.index if one else None for one in foreign]


class _Writer:
    """Columns as arrays, by their names."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self.words: dict[str, list[str]] = {}

    def array(self, name: str, values: NDArray[Any]) -> None:
        self.arrays[name] = values[:1] if len(values) and (values == values[0]).all() else values

    def _there(self, name: str, column: Sequence[Any]) -> bool:
        """Whether the column is not null everywhere."""
        there = is_there(column)
        if there.any() and not there.all():
            self.array(f"{name}.there", there.view(np.uint8))
        return bool(there.any())

    def hexes(self, name: str, column: Sequence[str | None]) -> None:
        if self._there(name, column):
            digits = bytes.fromhex("".join(value or "0" * 16 for value in column))
            self.array(name, np.frombuffer(digits, ">u8").astype("<u8"))

    def coded(self, name: str, column: Sequence[str | None], values: Sequence[str]) -> None:
        if is_there(column).any():
            codes: dict[str | None, int] = {value: code for code, value in enumerate(values)}
            self.array(name, np.array([codes.get(value, 255) for value in column], "<u1"))

    def paths(self, name: str, column: Sequence[str | None]) -> None:
        if self._there(name, column):
            cut = [((path or "")[: (path or "").rfind("/") + 1], path or "") for path in column]
            folders = {folder: k for k, folder in enumerate(dict.fromkeys(folder for folder, _ in cut))}
            names = [path[len(folder) :].encode("utf-8", "surrogateescape") for folder, path in cut]
            self.words[name] = list(folders)
            self.array(f"{name}.folder", np.array([folders[folder] for folder, _ in cut], "<u4"))
            self.arrays[f"{name}.ends"] = np.cumsum([len(one) for one in names], dtype="<u8")
            self.arrays[f"{name}.names"] = np.frombuffer(b"".join(names), "<u1")

    def origins(self, foreign: Sequence[Foreign | None]) -> None:
        if self._there("foreign", foreign):
            kinds = sorted({one.kind for one in foreign if one})
            if len(kinds) > 200:
                raise ValueError("more kinds of foreign files than there are libraries")
            self.words["foreign.kind"] = kinds
            self.coded("foreign.kind", [one.kind if one else None for one in foreign], kinds)
            self.array("foreign.mtime_ns", np.array([one.mtime_ns if one else 0 for one in foreign], "<i8"))
            self.paths("foreign.index", indices_of(foreign))
            self.hexes("foreign.index_checksum", [one.index_checksum if one else None for one in foreign])


def dump_table(manifest: Manifest) -> bytes:
    """The file of a manifest. Raises: ValueError if it cannot be one."""
    table, writer = manifest.shards, _Writer()
    writer.arrays = {"rows": table.rows, "starts": table.starts, "first_documents": table.first_documents}
    writer.paths("path", table.path)
    writer.hexes("token_checksum", table.token_checksum)
    writer.origins(table.foreign)
    kinds = [kind for kind, column in table.files.items() if (column.size >= 0).any()]
    for kind in kinds:
        column = table.files[kind]
        writer.array(f"{kind}.size", column.size)
        writer.hexes(f"{kind}.checksum", column.checksum)
        writer.hexes(f"{kind}.sample", column.sample)
        writer.paths(f"{kind}.path", column.path)
    for name, track in table.tracks.items():
        writer.coded(f"{name}.encoding", track.encoding, _ENCODINGS)
        writer.array(f"{name}.records", track.records)
        writer.array(f"{name}.entries", track.entries)
    size, checksum = manifest.seal
    places, at = dict[str, _Place](), 0
    for name, values in writer.arrays.items():
        places[name] = _Place(at=at, count=len(values))
        at += -(-values.nbytes // 8) * 8
    said = _Head(
        size=size,
        checksum=checksum,
        stream_fingerprint=manifest.stream_fingerprint(),
        tracks_fingerprint=manifest.tracks_fingerprint(),
        value=manifest.head(),
        kinds=tuple(kinds),
        words={name: tuple(words) for name, words in writer.words.items()},
        arrays=places,
    )
    text = json.dumps(asdict(said)).encode("ascii")
    text += b" " * (-len(text) % 8)
    pieces: list[Any] = [len(text).to_bytes(8, "little"), text]
    for values in writer.arrays.values():
        pieces += [np.ascontiguousarray(values).view(np.uint8).data, bytes(-values.nbytes % 8)]
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(piece)
    return b"".join([MAGIC, digest.intdigest().to_bytes(8, "little"), *pieces])


def is_large(manifest: Manifest) -> bool:
    """Whether a table of it saves more than it costs."""
    return manifest.seal[0] >= LEAST


def keep_table(manifest: Manifest, directory: str, stale: bool = True) -> bool:
    """Write the table of a large manifest next to it, if that can be done: everybody can do without.

    stale: one that is there is corrupt, or of another manifest. Any other is of a process that has written it in the
    meantime, and stays, since processes share the memory of one file.

    Returns: whether there is one now.
    """
    path = os.path.join(directory, fmt.TABLE)
    if not os.access(directory, os.W_OK):
        return False
    try:
        if stale:
            with named(path, "removed"), suppress(FileNotFoundError):
                os.unlink(path)
        if not is_large(manifest):
            return False
        write_file(path, dump_table(manifest), exclusive=True)
    except (ReadError, ValueError) as error:
        logger.warning("%s", error)
        return False
    return True


def parse_table(data: Buffer, where: str, seal: tuple[int, str]) -> Manifest:
    """The manifest of this seal, over arrays in `data`, which stay there.

    It is checked as one of JSON is. Raises: FormatError for a table that is corrupt, or of another manifest.
    """
    if data[: len(MAGIC)].tobytes() != MAGIC or len(data) < _HEAD:
        raise _bad(where, "no such table", f"{MAGIC!r} and more")
    said, end = (int.from_bytes(data[at : at + 8].tobytes(), "little") for at in (_HEAD - 16, _HEAD - 8))
    if said != (checksum := xxhash.xxh3_64_intdigest(data[_HEAD - 8 :].data)):
        raise _bad(where, f"checksum {checksum:016x}", f"{said:016x} as its beginning says")
    if end % 8 or _HEAD + end > len(data):
        raise _bad(where, f"a head of {end} bytes", "a multiple of 8, in the file")
    value = parse_json(data[_HEAD : _HEAD + end].tobytes(), where)
    file = JsonFile(value, where)
    head = file.parse(_Head)
    if seal != (head.size, head.checksum):
        raise _bad(where, f"the table of a manifest of checksum {head.checksum}", f"that of {seal[1]}")
    with file.named():
        manifest = _Reader(head, data[_HEAD + end :], where).manifest()
    fingerprints = head.stream_fingerprint, head.tracks_fingerprint
    vars(manifest).update(seal=seal, fingerprints=fingerprints)
    return manifest


class _Reader:
    """The columns of a table, of which nothing is believed."""

    def __init__(self, head: _Head, data: Buffer, where: str) -> None:
        self._head, self._data, self._where = head, data, where
        self._shards = head.arrays["rows"].count if "rows" in head.arrays else 0

    def manifest(self) -> Manifest:
        """Raises: ConfigError, FormatError."""
        rows, kinds, tracks = self._exact("rows", SHARD, self._shards), self._head.kinds, self._head.value.get("tracks")
        shards = {
            **{name: rows[name] for name in ("tokens", "layout", "offset", "documents")},
            "path": self._paths("path"),
            "token_checksum": self._hexes("token_checksum"),
            "foreign": self._origins(),
            "files": {kind: self._files(kind) for kind in kinds},
            "tracks": {name: self._track(name) for name in tracks} if isinstance(tracks, dict) else tracks,
        }
        table = JsonFile({**self._head.value, "shards": shards}, self._where)
        manifest = parse_manifest(table)
        self._use(manifest.shards, rows)
        return manifest

    def _use(self, table: ShardTable, rows: NDArray[Any]) -> None:
        """What the table would compute, if it agrees."""
        for name, first, counts in (("starts", "base", "tokens"), ("first_documents", "first_document", "documents")):
            found = self._exact(name, "<i8", self._shards + 1)
            rule = f"the sum of the {counts} before"
            require(found[:1] == 0, name, found, rule)
            require(found[1:] - found[:-1] == rows[counts], name, found, rule)
            require(rows[first] == found[:-1], f"rows.{first}", rows[first], rule)
            vars(table)[name] = found
        vars(table)["rows"] = rows

    def _exact(self, name: str, kind: Any, count: int) -> NDArray[Any]:
        """An array of so many elements."""
        place, dtype = self._head.arrays.get(name), np.dtype(kind)
        if place is None or place.count != count:
            raise ConfigError(f"arrays.{name}", "none" if place is None else place.count, str(count))
        stop = place.at + place.count * dtype.itemsize
        if place.at % 8 or stop > len(self._data):
            raise ConfigError(f"arrays.{name}", f"bytes [{place.at}, {stop})", f"at most {len(self._data)}")
        return self._data[place.at : stop].view(dtype)

    def _array(self, name: str, dtype: str) -> NDArray[Any]:
        place = self._head.arrays.get(name)
        if place is None or place.count != 1:
            return self._exact(name, dtype, self._shards)
        return everywhere(self._exact(name, dtype, 1)[0], self._shards)

    def _there(self, name: str) -> NDArray[np.bool_]:
        there = f"{name}.there"
        return self._array(there, "<u1") != 0 if there in self._head.arrays else everywhere(True, self._shards)

    def _hexes(self, name: str) -> Packed:
        if name not in self._head.arrays:
            return nothing(self._shards)
        return Hexes(self._array(name, "<u8"), self._there(name))

    def _coded(self, name: str, values: tuple[str, ...]) -> Coded:
        codes = self._array(name, "<u1") if name in self._head.arrays else everywhere(np.uint8(255), self._shards)
        return Coded(codes, values)

    def _paths(self, name: str) -> Packed:
        if name not in self._head.words:
            return nothing(self._shards)
        folders, folder = self._head.words[name], self._array(f"{name}.folder", "<u4")
        ends = self._exact(f"{name}.ends", "<u8", self._shards)
        require(folder < len(folders), f"{name}.folder", folder, f"one of {len(folders)}")
        wrong = next((one for one in folders if one and not one.endswith("/")), None)
        if wrong is not None:
            raise ConfigError(f"words.{name}", repr(wrong), "a folder")
        names = self._exact(f"{name}.names", "<u1", int(ends.max(initial=0)))
        require(ends[:-1] <= ends[1:], f"{name}.ends", ends, "numbers that do not decrease")
        if (names == ord("/")).any():
            raise ConfigError(f"{name}.names", "a folder", "names of files")
        return Paths(folders, folder, ends, names, self._there(name))

    def _files(self, kind: str) -> dict[str, Any]:
        return {
            "size": self._array(f"{kind}.size", "<i8"),
            "checksum": self._hexes(f"{kind}.checksum"),
            "sample": self._hexes(f"{kind}.sample"),
            "path": self._paths(f"{kind}.path"),
        }

    def _track(self, name: str) -> dict[str, Any]:
        records, entries = (self._array(f"{name}.{one}", "<i8") for one in ("records", "entries"))
        return {"encoding": self._coded(f"{name}.encoding", _ENCODINGS), "records": records, "entries": entries}

    def _origins(self) -> Packed:
        if "foreign.kind" not in self._head.arrays:
            return nothing(self._shards)
        mtime = self._array("foreign.mtime_ns", "<i8")
        require(mtime >= 0, "foreign.mtime_ns", mtime, "0 or more")
        kind = self._coded("foreign.kind", self._head.words.get("foreign.kind", ()))
        return Origins(kind, mtime, self._paths("foreign.index"), self._hexes("foreign.index_checksum"))


def _bad(where: str, found: str, expected: str) -> Exception:
    return fmt.bad(where, found, expected, "it is made again of the manifest, where the directory can be written")
