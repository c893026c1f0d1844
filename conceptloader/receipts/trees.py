"""What a dataset's SHA-256 tree is of: documents in a shard, shards in the dataset. docs/receipts-format.md has it."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np

from conceptloader.base.strict import Rule
from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import read_items
from conceptloader.format.read.files import Files
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import as_field
from conceptloader.format.spec.manifest import Manifest
from conceptloader.receipts import merkle

FILE = "receipts.derived.json"
FORMAT = "conceptloader-receipts"
VERSION = 1
_TOKENS = 1 << 20  # read at a time, or a document
_DOCUMENTS = 1 << 16


def _is_root(value: Any) -> bool:
    return re.fullmatch("[0-9a-f]{64}", value) is not None


_Root = Annotated[str, Rule(_is_root, "of 64 lower-case hexadecimal digits")]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The file next to the manifest, apart from `format` and `version`.

    The fingerprints are the dataset's: between them they cover tokens, boundaries of documents, and ids.
    """

    stream_fingerprint: str
    tracks_fingerprint: str
    document_roots: tuple[_Root, ...]


def fingerprints(manifest: Manifest) -> dict[str, str]:
    """By their keys in the file."""
    return {
        "stream_fingerprint": manifest.stream_fingerprint(),
        "tracks_fingerprint": manifest.tracks_fingerprint(),
    }


def prepared_roots(files: Files) -> Sequence[str]:
    """The roots of the shards' trees. Raises: ConfigError if they are not prepared, FormatError, ReadError."""
    path, folder = files.roots.resolve(FILE), files.roots.directory
    again = f"conceptloader receipt --prepare {folder}"
    if files.remote is not None:
        again = f"prepare a local copy (conceptloader receipt --prepare DIR), and upload its {FILE}"
    if files.roots.status(path) is None:
        raise ConfigError(folder, f"no {FILE}", "the hashes of its documents, which receipts need", again)
    found = files.roots.load(path).parse(Prepared, FORMAT, VERSION)
    for key, expected in fingerprints(files.manifest).items():
        if getattr(found, key) != expected:
            rule = f"{expected} of the dataset: the file is of another one, or of what it was before"
            raise ConfigError(f"{path}: {key}", getattr(found, key), rule, again)
    if len(found.document_roots) != len(files.table):
        raise fmt.bad(
            f"{path}: document_roots", f"{len(found.document_roots)}", f"{len(files.table)} shards", fmt.DAMAGED
        )
    return found.document_roots


def shard_entries(files: Files) -> list[bytes]:
    """Shards in the tree of their dataset: first token, numbers of tokens and documents, root of the documents.

    Raises: see prepared_roots.
    """
    table, roots = files.table, prepared_roots(files)
    columns = files.manifest.starts().tolist()[:-1], table.tokens.tolist(), table.documents.tolist(), roots
    return [_numbers(*row) + bytes.fromhex(root) for *row, root in zip(*columns, strict=True)]


def dataset_root(files: Files) -> bytes:
    """The root of a dataset. Raises: see prepared_roots."""
    return merkle.root_of(map(merkle.leaf, shard_entries(files)))


def document_entries(files: Files, shard: int) -> Iterator[bytes]:
    """Documents in the tree of their shard: first token there, number of tokens, SHA-256 of the tokens, id.

    Raises: FormatError for tables that cannot be right, and for tokens that are no u4; ReadError.
    """
    table, path = files.table, files.path("documents.bin", shard)
    count, dtype = int(table.documents[shard]), files.manifest.layouts[table.layout[shard]].dtype
    for low in range(0, count, _DOCUMENTS):
        high = min(low + _DOCUMENTS, count)
        first = read_items(files, "documents.bin", shard, fmt.OFFSET, low, high + 1).astype(np.int64)
        if (np.diff(first) < 0).any() or first[-1] > table.tokens[shard]:
            raise fmt.bad(path, f"documents {low} to {high}", "starts that do not decrease", fmt.DAMAGED)
        ids, start = _ids(files, shard, low, high), 0
        while start < len(ids):
            stop = max(start + 1, int(np.searchsorted(first, first[start] + _TOKENS, "right")) - 1)
            base, size = int(first[start]), int(first[stop] - first[start])
            at = int(table.offset[shard]) + base * dtype.itemsize
            items = np.frombuffer(files.read("stream.bin", shard, at, size * dtype.itemsize), dtype)
            try:
                content = np.ascontiguousarray(as_field(items["token"], np.dtype("<u4")))
            except ValueError as error:
                raise fmt.bad(files.path("stream.bin", shard), "a token", f"u4 ({error})", fmt.DAMAGED) from error
            for (a, b), name in zip(pairwise(first[start : stop + 1].tolist()), ids[start:stop], strict=True):
                yield _numbers(a, b - a) + hashlib.sha256(content[a - base : b - base].data).digest() + name
            start = stop


def _ids(files: Files, shard: int, low: int, high: int) -> list[bytes]:
    """Ids of documents [low, high), in UTF-8; empty where there is none."""
    if files.table.files["documents.ids"].size[shard] < 0:
        return [b""] * (high - low)
    base = 8 * (int(files.table.documents[shard]) + 1)
    offsets = read_items(files, "documents.ids", shard, fmt.OFFSET, low, high + 1).astype(np.int64)
    if (np.diff(offsets) < 0).any() or base + offsets[-1] > files.table.files["documents.ids"].size[shard]:
        raise fmt.bad(files.path("documents.ids", shard), f"ids {low} to {high}", "offsets in the file", fmt.DAMAGED)
    text = files.read("documents.ids", shard, base + int(offsets[0]), int(offsets[-1] - offsets[0]))
    return [text[a:b] for a, b in pairwise((offsets - offsets[0]).tolist())]


def _numbers(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)
