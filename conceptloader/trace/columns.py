"""The documents of a dataset as Arrow tables: the columns that an expression can use."""

import json
from collections.abc import Collection
from typing import Any

import numpy as np
import xxhash

from conceptloader.base.hashing import derive_key
from conceptloader.base.packages import need
from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import records_of, spans_of
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints
from conceptloader.trace.documents import concepts_in, document_ids, id_lists
from conceptloader.trace.ranges import document_ranges, ranges_by_shard

_NUMBERS = "", "_min", "_max"
_ID_TYPES = ("string", "large_string", "string_view", "integer")
_RECORDS = "json"
_RANGE_OF_IDS = 1 << 10  # documents that are looked at for one with an id


class DocumentColumns:
    """types: the columns that there are, by name.

    document, id, tokens (its length), share (a hash of its id, or without one of its number: uniform in [0, 1)); of a
    track of concepts the list of those that its tokens carry, by name, or by id where there are no names; of a track of
    numbers their mean, and NAME_min and NAME_max; of a track of json the first record, as JSON.
    metadata: a parquet or jsonl file whose other columns are there as well; its column `on` (by default `id`) has ids
    of documents, which are compared as text. with_row: how many of the documents have a row in it. seed: of share.
    """

    def __init__(self, dataset: Dataset, seed: int = 0, metadata: str | None = None, on: str | None = None) -> None:
        if not dataset.num_documents:
            raise ConfigError(
                dataset.path,
                "no document table",
                "a document table, to filter documents",
                "omit the filter, or rebuild or adopt the dataset with documents",
            )
        self._arrow = arrow = need("pyarrow", "subset: found no pyarrow package, which makes the tables")
        self.dataset, self._key = dataset, derive_key(seed, "share of documents")
        self._names = {}
        self.types: dict[str, Any] = {"document": arrow.int64(), "id": arrow.large_string()}
        self.types |= {"tokens": arrow.int64(), "share": arrow.float64()}
        for name, track in sorted(dataset.tracks.items()):
            if track.codec == "concepts":
                names = dataset.vocabulary(name)
                self._names[name] = None if names is None else arrow.array(names, arrow.string())
                self.types[name] = arrow.list_(arrow.int64() if names is None else arrow.string())
            elif track.codec == "numpy":
                self.types |= {name + end: arrow.float64() for end in _NUMBERS}
            elif track.codec == _RECORDS:
                self.types[name] = arrow.string()
        self._metadata = None if metadata is None else self._load(metadata, on or "id")
        if self._metadata is not None:
            self.types |= {column.name: column.type for column in self._metadata.schema if column.name != "id"}
        self.with_row = 0

    def record_of(self, name: str) -> str | None:
        """The track of records of which `name`, TRACK.KEY or TRACK.KEY.KEY, is a key; None for a column or no name."""
        track = name.partition(".")[0]
        known = name not in self.types and track != name and track in self.dataset.tracks
        return track if known and self.dataset.tracks[track].codec == _RECORDS else None

    def keys_of(self, name: str) -> list[str]:
        """Keys TRACK.NAME that one of the first documents has."""
        tracks = [track for track, found in self.dataset.tracks.items() if found.codec == _RECORDS]
        documents = np.arange(min(self.dataset.num_documents, _RANGE_OF_IDS))
        start, stop = document_ranges(self.dataset, documents)
        keys = [(track, f"{track}.{name}") for track in tracks]
        return [key for track, key in keys if self._first(track, {key}, start, stop)[key].null_count < len(documents)]

    def table(self, documents: Ints, names: Collection[str]) -> Any:
        """Some columns of some documents, given by their numbers, ascending.

        Keys of records may be columns, too: their values as JSON, null where there is none.
        """
        arrow, found = self._arrow, {}
        start, stop = document_ranges(self.dataset, documents)
        ids = document_ids(self.dataset, documents)
        if "share" in names:
            found["share"] = self._shares(documents, ids)
        for name, track in self.dataset.tracks.items():
            if track.codec == "concepts" and name in names:
                found[name] = self._concepts(name, start, stop)
            elif track.codec == _RECORDS and (keys := {one for one in names if name in (one, self.record_of(one))}):
                found |= self._first(name, keys, start, stop)
            elif track.codec == "numpy" and {name + end for end in _NUMBERS} & set(names):
                found |= self._numbers(name, start, stop)
        base = {"document": documents, "id": ids, "tokens": stop - start}
        table = arrow.table({name: value for name, value in {**base, **found}.items() if name in names or name == "id"})
        if self._metadata is not None:
            at = need("pyarrow.compute", "subset").index_in(ids, value_set=self._metadata["id"])
            self.with_row += len(at) - at.null_count
            for name in sorted(set(names) - set(table.column_names)):
                table = table.append_column(name, self._metadata[name].take(at))
        return table

    def first_of(self, key: str) -> Any:
        """The first value of a key of records that any document has; None if none has."""
        for low in range(0, self.dataset.num_documents, _RANGE_OF_IDS):
            documents = np.arange(low, min(low + _RANGE_OF_IDS, self.dataset.num_documents))
            found = self._first(str(self.record_of(key)), {key}, *document_ranges(self.dataset, documents))[key]
            for text in found.drop_null().to_pylist():
                return json.loads(text)
        return None

    def check_metadata(self, with_row: int) -> None:
        """with_row: of all documents. Raises: ConfigError for metadata of other documents."""
        if self._metadata is None or with_row:
            return
        documents = np.arange(min(self.dataset.num_documents, _RANGE_OF_IDS))
        known = document_ids(self.dataset, documents).drop_null()
        raise ConfigError(
            "metadata",
            f"none of its {len(self._metadata):,} ids in {self.dataset.path}, such as "
            f"{self._metadata['id'][0].as_py()!r:.100}",
            "ids of its documents, " + (f"such as {known[0].as_py()!r:.100}" if len(known) else "which has none"),
            "nothing was written",
        )

    def _load(self, path: str, on: str) -> Any:
        where = f"metadata: {path}"
        try:
            if path.endswith(".parquet"):
                table = need("pyarrow.parquet", where).read_table(path)
            else:
                table = self._read_lines(path, on, need("pyarrow.json", where))
        except (OSError, self._arrow.ArrowInvalid) as error:
            raise ConfigError(
                where,
                str(error),
                "a parquet or jsonl file whose ids are strings, or all of them integers",
                "convert the file",
            ) from error
        if on not in table.column_names or table[on].null_count == len(table):
            found = f"the columns {', '.join(table.column_names)}"
            raise ConfigError(where, found, f"a column {on} with ids", "name the one that has them (--on COLUMN)")
        if on != "id":
            clash = {"id": "(its own id)", on: "id"}
            table = table.rename_columns([clash.get(name, name) for name in table.column_names])
        twice = sorted(set(table.column_names) & set(self.types) - {"id"})
        if twice:
            raise ConfigError(
                where,
                f"the columns {', '.join(twice)}, which the dataset has too",
                "new names",
                f"rename {', '.join(twice)} in the table",
            )
        kind = getattr(table["id"].type, "value_type", table["id"].type)  # of a dictionary, too
        if not any(getattr(self._arrow.types, f"is_{name}")(kind) for name in _ID_TYPES):
            raise ConfigError(
                where,
                f"ids of type {kind}",
                "strings or integers, as in the input",
                "cast the column of ids to strings",
            )
        table = table.filter(table["id"].is_valid())
        ids = table["id"].cast(self._arrow.large_string())
        if len(ids.unique()) != len(ids):
            raise ConfigError(where, "an id twice", "one row for each document", "remove one of the rows")
        return table.set_column(table.column_names.index("id"), "id", ids).combine_chunks()

    def _read_lines(self, path: str, on: str, json: Any) -> Any:
        """A jsonl file, without guesses at ids: those like dates would become times."""

        def read(kind: Any) -> Any:
            options = json.ParseOptions(explicit_schema=self._arrow.schema([(on, kind)]))
            return json.read_json(path, parse_options=options)

        try:
            return read(self._arrow.string())
        except self._arrow.ArrowInvalid:
            return read(self._arrow.int64())

    def _shares(self, documents: Ints, ids: Any) -> Any:
        numbers = self.dataset.sources(documents).tolist()
        texts = (
            f"{self.dataset.manifest.stream_fingerprint()}/{n}" if one is None else one
            for one, n in zip(ids.to_pylist(), numbers, strict=True)
        )
        hashes = np.array([xxhash.xxh3_64_intdigest(one.encode(), self._key) for one in texts], np.uint64)
        return (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53

    def _spans(self, track: str, start: Ints, stop: Ints) -> Any:
        """(shard, documents, spans of these, records) by shard."""
        some = np.flatnonzero(start < stop)
        for shard, cut in ranges_by_shard(self.dataset, start[some], stop[some]):
            if self.dataset.manifest.shards.tracks[track].encoding[shard] is not None:
                yield shard, some[cut.row], cut.first, cut.end

    def _concepts(self, track: str, start: Ints, stop: Ints) -> Any:
        parts, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for shard, rows, a, b in self._spans(track, start, stop):
            which, found = concepts_in(self.dataset, shard, track, (a, b), (np.arange(len(a)), a, b))
            parts.append(rows[which])
            ids.append(found)
        return id_lists(self.dataset, track, len(start), np.concatenate(parts), np.concatenate(ids))

    def _records(self, track: str, start: Ints, stop: Ints) -> Any:
        """(documents, records) by shard, a record for each span."""
        for shard, rows, a, b in self._spans(track, start, stop):
            for level in self.dataset.levels[track][::-1]:  # the outermost, whose first record is shown, last
                spans, numbers = spans_of(self.dataset.reader, shard, level, a, b)
                yield rows[spans.row], records_of(self.dataset.reader, shard, level, numbers)

    def _first(self, track: str, names: Collection[str], start: Ints, stop: Ints) -> dict[str, Any]:
        found: dict[str, list[str | None]] = {name: [None] * len(start) for name in names}
        paths = {name: name.split(".")[1:] for name in names}
        decode = self.dataset.codec(track).decode
        for rows, records in self._records(track, start, stop):
            for k in np.unique(rows, return_index=True)[1].tolist():
                record = decode(memoryview(records[k]))
                for name, keys in paths.items():
                    value = record
                    for key in keys:
                        value = value.get(key) if isinstance(value, dict) else None
                    if value is not None:
                        found[name][rows[k]] = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return {name: self._arrow.array(texts, self._arrow.string()) for name, texts in found.items()}

    def _numbers(self, track: str, start: Ints, stop: Ints) -> dict[str, Any]:
        count, total = np.zeros(len(start), np.int64), np.zeros(len(start))
        least, most = np.full(len(start), np.inf), np.full(len(start), -np.inf)
        codec: Any = self.dataset.codec(track)
        for rows, records in self._records(track, start, stop):
            values = np.frombuffer(b"".join(records), codec.dtype).astype(np.float64)
            owner = np.repeat(rows, [len(record) // codec.dtype.itemsize for record in records])
            count += np.bincount(owner, minlength=len(start))
            total += np.bincount(owner, values, minlength=len(start))
            np.minimum.at(least, owner, values)
            np.maximum.at(most, owner, values)
        columns = zip(_NUMBERS, (total / np.maximum(count, 1), least, most), strict=True)
        return {track + end: self._arrow.array(column, mask=count == 0) for end, column in columns}
