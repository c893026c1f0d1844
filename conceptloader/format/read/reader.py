"""The shards of one dataset: one document or id at a time. bulk.py reads documents and spans of many token ranges.

Everything here is local to a shard; ranges.py puts shards together.
"""

import numpy as np

from conceptloader.format.read.files import Files
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.layout import DAMAGED, bad


class ShardReader:
    """Reads by shard, and by document or token within the shard."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.manifest = files.manifest
        self.table = files.table

    def document_range(self, shard: int, ordinal: int) -> tuple[int, int]:
        """The tokens [start, stop) of a document; one read."""
        data = self.files.read("documents.bin", shard, 8 * ordinal, 16)
        start, stop = np.frombuffer(data, fmt.OFFSET).tolist()
        if not start <= stop <= int(self.table.tokens[shard]):
            found = f"document {ordinal} at tokens [{start}, {stop})"
            raise self.bad("documents.bin", shard, found, "starts that do not decrease")
        return start, stop

    def external_id(self, shard: int, ordinal: int) -> str | None:
        """The id that a document had in the input, or None; two reads."""
        size = int(self.table.files["documents.ids"].size[shard])
        if size < 0:
            return None
        base = 8 * (int(self.table.documents[shard]) + 1)
        data = self.files.read("documents.ids", shard, 8 * ordinal, 16)
        start, stop = np.frombuffer(data, fmt.OFFSET).tolist()
        if not start <= stop <= size - base:
            rule = f"non-decreasing offsets up to {size - base}"
            raise self.bad("documents.ids", shard, f"offsets {start}, {stop}", rule)
        try:
            return self.files.read("documents.ids", shard, base + start, stop - start).decode("utf-8") or None
        except UnicodeDecodeError as error:
            raise self.bad("documents.ids", shard, f"an id that is not UTF-8 ({error})", "UTF-8") from error

    def wider(self, shard: int, start: Ints, stop: Ints) -> tuple[Ints, Ints]:
        """Token ranges with a token more on either side, which shows whether spans of a dense track continue there."""
        return np.maximum(start - 1, 0), np.minimum(stop + 1, self.table.tokens[shard])

    def bad(self, kind: str, shard: int, found: str, expected: str) -> Exception:
        """For a file of a shard whose content cannot be right."""
        return bad(self.files.path(kind, shard), found, expected, DAMAGED)
