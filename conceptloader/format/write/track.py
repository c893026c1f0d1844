"""Writing one track of a shard: records, and which tokens point at which record."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from conceptloader.errors import InputError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.codecs import Codec, ConceptsCodec, NumpyCodec
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.options import TrackOptions
from conceptloader.format.write.tables import Runs
from conceptloader.storage.durable import Spool


@dataclass(frozen=True)
class BulkSpans:
    """Spans of one track over a batch of documents, for writers that add whole batches (`ShardWriter.add_documents`).

    start, end: int64 [m], in tokens of the batch; in order, disjoint, none across a document boundary.
    record: int64 [m], which of the batch's r records a span has; records may be shared.
    data, offsets: record i is data[offsets[i]:offsets[i + 1]], encoded by the track's codec; offsets int64 [r + 1].
    """

    start: Ints
    end: Ints
    record: Ints
    data: Any
    offsets: Ints

    def check(self, documents: Ints, where: str) -> None:
        """documents: where the batch's documents begin and end, int64 [n + 1]. Raises: InputError."""
        lengths = np.diff(self.offsets)
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.data) or (lengths < 0).any():
            raise InputError(
                where,
                "offsets of records that do not fit the data",
                "ascending offsets up to its end",
                "pass ascending offsets that end at the length of the data",
            )
        if len(lengths) and int(lengths.max()) > fmt.MAX_RECORD_BYTES:
            raise InputError(
                where,
                f"a record of {lengths.max()} bytes",
                f"at most {fmt.MAX_RECORD_BYTES}",
                f"pass records of at most {fmt.MAX_RECORD_BYTES} bytes",
            )
        if not len(self.start):
            return
        kinds = {name: getattr(self, name).dtype for name in ("start", "end", "record")}
        if any(kind.kind not in "iu" for kind in kinds.values()):
            raise InputError(where, f"spans of {kinds}", "integers", "pass start and end as integers")
        before = np.concatenate([documents[:1], self.end[:-1]])
        document = np.searchsorted(documents, self.start, "right") - 1
        good = (self.start >= before) & (self.end > self.start) & (document < len(documents) - 1)
        good &= self.end <= documents[np.minimum(document + 1, len(documents) - 1)]
        if not good.all():
            i = int(np.argmin(good))
            raise InputError(
                where,
                f"span [{self.start[i]}, {self.end[i]}) of the batch after one that ends at {before[i]}",
                "spans in order, disjoint and within one document",
                "sort the spans, and split overlaps first, into tracks of levels or into segments",
            )
        if int(self.record.min()) < 0 or int(self.record.max()) >= len(lengths):
            raise InputError(
                where,
                f"a record number outside [0, {len(lengths)})",
                "the number of a record of the batch",
                "pass record numbers in this range",
            )

    def entries(self, base: int, end: int, record: int) -> "np.ndarray[Any, np.dtype[np.void]]":
        """The spans as entries of a shard, gaps included.

        base: where the batch begins in the shard; end: first token of the shard without an entry; record: the number
        of the batch's first record in the shard.
        """
        start = self.start + base
        before = np.concatenate([np.array([end], np.int64), self.end[:-1] + base])
        gap = start > before
        place = np.arange(len(start)) + np.cumsum(gap)
        entries = np.empty(len(start) + int(gap.sum()), fmt.ENTRY)
        entries["first"][place] = start
        entries["record"][place] = self.record + record
        entries["first"][place[gap] - 1] = before[gap]
        entries["record"][place[gap] - 1] = fmt.NO_RECORD
        return entries


class TrackWriter:
    """Records go to `.data` and `.index` as they come; runs to a spool that becomes `.spans` or a dense field."""

    def __init__(self, path: str, codec: Codec, options: TrackOptions, block_tokens: int, spools: ExitStack) -> None:
        self.runs = Runs(path + ".spans", block_tokens, spools)
        self.records = 0
        self.files = {kind: spools.enter_context(Spool(f"{path}.{kind}")) for kind in ("index", "data")}
        self._codec = codec
        self._options = options
        self._concepts = len(options.vocabulary) if options.vocabulary is not None else 1 << 32
        self._item = 0  # bytes of an item, of records that consist of some
        if isinstance(codec, (ConceptsCodec, NumpyCodec)):
            self._item = codec.item
        self._fewest, self._most = fmt.MAX_RECORD_BYTES, 0  # of these in a record
        self._end = 0  # first token that has no entry yet
        self.files["index"].write(np.zeros(1, fmt.OFFSET))

    def check(self, spans: Sequence[tuple[int, int, Any]] | BulkSpans, documents: Ints, where: str) -> BulkSpans:
        """The spans, of one document if they are no BulkSpans, whose records are encoded then.

        A record that was added before has a number below 0. documents: where they begin and end. Raises: InputError;
        nothing is written.
        """
        if isinstance(spans, BulkSpans):
            self._check_many(spans, documents, where)
            return spans
        length = int(documents[-1])
        places: list[tuple[int, int, int]] = []
        data: list[bytes] = []
        last = 0
        for first, stop, record in spans:
            try:
                start, end = index(first), index(stop)
            except TypeError as error:
                raise InputError(
                    where, f"span [{first}, {stop})", "integers", "pass start and end as integers"
                ) from error
            if not last <= start < end <= length:
                raise InputError(
                    where,
                    f"span [{start}, {end})",
                    f"{last} <= start < end <= {length}, {last} being the end of the span before",
                    "sort the spans, and split overlaps first, into tracks of levels or into segments",
                )
            if isinstance(record, (int, np.integer)):
                if not 0 <= record < self.records:
                    raise InputError(
                        where,
                        f"record number {record}",
                        f"the number of one of the {self.records} records added so far",
                        "call add_record(track, record) first, and pass the number that it returns",
                    )
                places.append((start, end, int(record) - self.records))
            else:
                places.append((start, end, len(data)))
                data.append(self.encode(record, where))
            last = end
        self._check_room(len(places), where)
        start, end, record = np.array(places, np.int64).reshape(-1, 3).T
        return BulkSpans(start, end, record, b"".join(data), offsets_of([len(one) for one in data]))

    def _check_room(self, records: int, where: str) -> None:
        if self.records + records > fmt.NO_RECORD:
            raise InputError(
                where,
                "more than 2**32 - 1 records in one shard",
                "at most 2**32 - 1 records",
                "pass a smaller --shard-input-bytes, for more shards",
            )

    def encode(self, record: Any, where: str) -> bytes:
        """The bytes of a record, checked."""
        self._check_room(1, where)
        try:
            if isinstance(record, bytes):
                data = record
                self._codec.check(data)
            else:
                data = self._codec.encode(record)
        except ValueError as error:
            raise InputError.saying(f"{where}: record", str(error)) from error
        if len(data) > fmt.MAX_RECORD_BYTES:
            raise InputError(
                where,
                f"a record of {len(data)} bytes",
                f"at most {fmt.MAX_RECORD_BYTES}",
                f"pass a record of at most {fmt.MAX_RECORD_BYTES} bytes",
            )
        if isinstance(self._codec, ConceptsCodec) and len(data) and self._concepts < 1 << 32:
            self._check_concepts(data, np.array([len(data)]), where)
        return data

    def _check_concepts(self, data: Any, sizes: Ints, where: str) -> None:
        assert isinstance(self._codec, ConceptsCodec)
        largest = int(self._codec.all_ids(data, sizes).max())
        if largest >= self._concepts:
            rule = f"ids below {self._concepts}, the size of the vocabulary"
            raise InputError(where, f"concept id {largest}", rule, "pass concept ids in this range")

    def add_record(self, data: bytes) -> int:
        """Write what `encode` has passed. Returns: its number."""
        nothing = np.empty(0, np.int64)
        self.add(0, BulkSpans(nothing, nothing, nothing, data, offsets_of([len(data)])))
        return self.records - 1

    def _check_many(self, spans: BulkSpans, documents: Ints, where: str) -> None:
        spans.check(documents, where)
        self._check_room(len(spans.offsets) - 1, where)
        if isinstance(self._codec, ConceptsCodec) and len(spans.data):
            if (spans.offsets % self._item).any():
                raise InputError(
                    where,
                    "records of other lengths",
                    f"{self._item} bytes for a concept",
                    f"pass records of {self._item} bytes",
                )
            self._check_concepts(spans.data, np.diff(spans.offsets), where)

    def add(self, base: int, spans: BulkSpans) -> None:
        """Write what `check` has passed, of documents that begin at token `base` of the shard."""
        if len(spans.start):
            self.runs.add(spans.entries(base, self._end, self.records))
            self._end = base + int(spans.end[-1])
        self.files["index"].write((spans.offsets[1:] + self.files["data"].size).astype(fmt.OFFSET))
        self.files["data"].write(spans.data)
        if self._item and len(spans.offsets) > 1:
            counts = np.diff(spans.offsets) // self._item
            self._fewest, self._most = min(self._fewest, int(counts.min())), max(self._most, int(counts.max()))
        self.records += len(spans.offsets) - 1

    @property
    def max_items(self) -> int | None:
        """Of what has been added, as in the manifest."""
        single = isinstance(self._codec, NumpyCodec) and self._fewest >= 1 >= self._most
        return None if single or not self._item else self._most

    def encoding(self, tokens: int, block_tokens: int) -> str:
        """What `auto` means for this shard: the encoding with fewer bytes."""
        if self._end < tokens:
            self.runs.add(np.array([(self._end, fmt.NO_RECORD)], fmt.ENTRY))
            self._end = tokens
        if self._options.encoding != "auto":
            return self._options.encoding
        return fmt.SPANS if fmt.spans_size(tokens, self.runs.count, block_tokens) <= 4 * tokens else fmt.DENSE

    def finish(self, tokens: int, encoding: str) -> Mapping[str, Any]:
        """Complete the files; afterwards `files` are those that belong to the shard. Returns: facts for shard.json."""
        ladder = self.runs.ladder(tokens)
        entries = 0
        if encoding == fmt.SPANS:
            entries = self.runs.count
            self.runs.table.finish(tokens, self.runs.spool)
            self.files["spans"] = self.runs.spool
        return {
            "encoding": encoding,
            "records": self.records,
            "entries": entries,
            "max_spans": ladder.counts,
            "max_items": self.max_items,
        }
