"""One new track over the shards of a dataset: files for the shards that have annotations, none for the others."""

import os
from contextlib import ExitStack
from dataclasses import dataclass, field

from conceptloader.format.spec.codecs import get_codec
from conceptloader.format.spec.layout import SPANS
from conceptloader.format.spec.manifest import LADDER_STEPS, Manifest, most_items
from conceptloader.format.spec.options import TrackOptions
from conceptloader.format.spec.shardtable import FileColumn, TrackColumn
from conceptloader.format.write.track import BulkSpans, TrackWriter

KINDS = ("index", "data", "spans")


@dataclass
class ShardTracks:
    """Spans arrive shard by shard in order; a shard is finished when the next one begins.

    column, files (by kind), max_spans, max_items: what a manifest says of the track, complete after `finish`.
    """

    directory: str
    name: str
    options: TrackOptions
    manifest: Manifest
    column: TrackColumn = field(init=False)
    files: dict[str, FileColumn] = field(init=False)
    max_spans: tuple[int, ...] = (0,) * LADDER_STEPS
    max_items: int | None = None
    _writer: TrackWriter | None = field(init=False, default=None)
    _spools: ExitStack = field(init=False, default_factory=ExitStack)
    _shard: int = field(init=False, default=-1)

    def __post_init__(self) -> None:
        n = len(self.manifest.shards)
        self.column = TrackColumn.absent(n)
        self.files = {kind: FileColumn.absent(n) for kind in KINDS}
        self.max_items = 0 if self.options.codec == "concepts" else None

    def add(self, shard: int, spans: BulkSpans) -> None:
        """Append spans in tokens of the shard, after those that were added before."""
        if not len(spans.start):
            return
        if shard != self._shard:
            self.finish()
            path = os.path.join(self.directory, f"{shard:05d}.{self.name}")
            codec = get_codec(self.options.codec, self.options.parameters, f"track {self.name!r}")
            self._writer = TrackWriter(path, codec, self.options, self.manifest.block_tokens, self._spools)
            self._shard = shard
        assert self._writer is not None
        self._writer.add(0, spans)

    def finish(self) -> None:
        """Finish the last shard."""
        writer, shard = self._writer, self._shard
        if writer is None:
            return
        tokens = int(self.manifest.shards.tokens[shard])
        encoding = writer.encoding(tokens, self.manifest.block_tokens)
        found = writer.finish(tokens, encoding)
        assert encoding == SPANS
        self.column.encoding[shard] = encoding
        self.column.records[shard], self.column.entries[shard] = found["records"], found["entries"]
        self.max_spans = tuple(map(max, self.max_spans, found["max_spans"]))
        before = int(self.column.records.sum()) - found["records"]
        self.max_items = most_items([(self.max_items, before), (found["max_items"], found["records"])])
        for kind in KINDS:
            spool = writer.files[kind]
            spool.commit()
            column = self.files[kind]
            column.size[shard], column.checksum[shard], column.sample[shard] = spool.size, spool.checksum, spool.sample
            column.path[shard] = f"{shard:05d}.{self.name}.{kind}"
        self._spools.close()
        self._writer = None
