"""One new track over the shards of a dataset: files for the shards that have annotations, none for the others."""

import os
from dataclasses import dataclass, field

import numpy as np

from conceptloader.format.spec.codecs import get_codec
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.layout import SPANS
from conceptloader.format.spec.manifest import LADDER_STEPS, Manifest
from conceptloader.format.spec.options import TrackOptions
from conceptloader.format.spec.shardtable import FileColumn
from conceptloader.format.write.bulk import BulkSpans
from conceptloader.format.write.track import TrackWriter

KINDS = ("index", "data", "spans")


@dataclass
class TrackFacts:
    """What a manifest says about a track: per shard, and as a whole. files: by kind."""

    encoding: list[str | None]
    records: Ints
    entries: Ints
    files: dict[str, FileColumn]
    max_spans: tuple[int, ...] = (0,) * LADDER_STEPS
    max_items: int | None = None


@dataclass
class ShardTracks:
    """Spans arrive shard by shard in order; a shard is finished when the next one begins."""

    directory: str
    name: str
    options: TrackOptions
    manifest: Manifest
    _facts: TrackFacts = field(init=False)
    _writer: TrackWriter | None = field(init=False, default=None)
    _shard: int = field(init=False, default=-1)

    def __post_init__(self) -> None:
        n = len(self.manifest.shards)
        self._facts = TrackFacts(
            encoding=[None] * n,
            records=np.zeros(n, np.int64),
            entries=np.zeros(n, np.int64),
            files={kind: FileColumn(np.full(n, -1, np.int64), [None] * n, [None] * n, [None] * n) for kind in KINDS},
            max_items=0 if self.options.codec == "concepts" else None,
        )

    def add(self, shard: int, spans: BulkSpans) -> None:
        """Append spans in tokens of the shard, behind those that were added before."""
        if not len(spans.start):
            return
        if shard != self._shard:
            self._finish_shard()
            path = os.path.join(self.directory, f"{shard:05d}.{self.name}")
            codec = get_codec(self.options.codec, self.options.parameters, None, f"track {self.name!r}")
            self._writer = TrackWriter(path, codec, self.options, self.manifest.block_tokens)
            self._shard = shard
        assert self._writer is not None
        self._writer.add(0, spans)

    def finish(self) -> TrackFacts:
        self._finish_shard()
        return self._facts

    def _finish_shard(self) -> None:
        writer, shard, facts = self._writer, self._shard, self._facts
        if writer is None:
            return
        tokens = int(self.manifest.shards.tokens[shard])
        encoding = writer.encoding(tokens, self.manifest.block_tokens)
        found = writer.finish(tokens, encoding)
        assert encoding == SPANS
        facts.encoding[shard] = encoding
        facts.records[shard], facts.entries[shard] = found["records"], found["entries"]
        facts.max_spans = tuple(map(max, facts.max_spans, found["max_spans"]))
        if facts.max_items is not None:
            facts.max_items = max(facts.max_items, found["max_items"])
        for kind in KINDS:
            spool = writer.files[kind]
            spool.commit()
            column = facts.files[kind]
            assert column.path is not None
            assert column.sample is not None
            column.size[shard], column.checksum[shard], column.sample[shard] = spool.size, spool.checksum, spool.sample
            column.path[shard] = f"{shard:05d}.{self.name}.{kind}"
        writer.discard()
        self._writer = None
