"""The documents of a shard as its SHA-256 tree has them, computed from the files."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from conceptloader.format.read.bulk import read_items
from conceptloader.format.read.files import Files
from conceptloader.format.read.reader import DAMAGED
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.receipts import entries_of

_TOKENS = 1 << 20  # read at a time, or a document
_DOCUMENTS = 1 << 16


def document_entries(files: Files, shard: int) -> Iterator[bytes]:
    """See entries_of. Raises: FormatError for tables that cannot be right."""
    table, path = files.table, files.path("documents.bin", shard)
    count, dtype = int(table.documents[shard]), files.manifest.layouts[table.layout[shard]].dtype
    for low in range(0, count, _DOCUMENTS):
        high = min(low + _DOCUMENTS, count)
        first = read_items(files, "documents.bin", shard, fmt.OFFSET, low, high + 1).astype(np.int64)
        if (np.diff(first) < 0).any() or first[-1] > table.tokens[shard]:
            raise fmt.bad(path, f"documents {low} to {high}", "starts that do not decrease", DAMAGED)
        ids, start = _ids(files, shard, low, high), 0
        while start < len(ids):
            stop = max(start + 1, int(np.searchsorted(first, first[start] + _TOKENS, "right")) - 1)
            base, size = int(first[start]), int(first[stop] - first[start])
            at = int(table.offset[shard]) + base * dtype.itemsize
            items = np.frombuffer(files.read("stream.bin", shard, at, size * dtype.itemsize), dtype)
            try:
                yield from entries_of(base, items["token"], first[start : stop + 1] - base, ids[start:stop])
            except ValueError as error:
                raise fmt.bad(files.path("stream.bin", shard), "a token", f"u4 ({error})", DAMAGED) from error
            start = stop


def _ids(files: Files, shard: int, low: int, high: int) -> list[bytes]:
    """Ids of documents [low, high), in UTF-8; empty where there is none."""
    if files.table.files["documents.ids"].size[shard] < 0:
        return [b""] * (high - low)
    base = 8 * (int(files.table.documents[shard]) + 1)
    offsets = read_items(files, "documents.ids", shard, fmt.OFFSET, low, high + 1).astype(np.int64)
    if (np.diff(offsets) < 0).any() or base + offsets[-1] > files.table.files["documents.ids"].size[shard]:
        raise fmt.bad(files.path("documents.ids", shard), f"ids {low} to {high}", "offsets in the file", DAMAGED)
    text = files.read("documents.ids", shard, base + int(offsets[0]), int(offsets[-1] - offsets[0]))
    return [text[a:b] for a, b in pairwise((offsets - offsets[0]).tolist())]
