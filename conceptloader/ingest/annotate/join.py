"""Annotations with the numbers of their documents, in the order of these: joined and sorted by DuckDB."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.base.terminal import counted
from conceptloader.errors import InputError
from conceptloader.format.read.ids import AMBIGUOUS, MISSING, each_id, find_many, hash_ids
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.spec.columns import Ints
from conceptloader.ingest.annotate.columns import Found
from conceptloader.ingest.annotate.rows import WHOLE
from conceptloader.ingest.database import PROBLEM, load
from conceptloader.ingest.records.batch import Ragged
from conceptloader.ingest.records.inputs import Source
from conceptloader.storage.reads import named

_IDS, _ROWS = 1 << 17, 1 << 15  # looked up, placed at a time
_NUMBERS = "document", "start", "stop", "source", "row", "content"


@dataclass(frozen=True)
class Items:
    """Annotations, see `schema`, in the order of their documents."""

    document: Ints
    start: Ints
    stop: Ints
    source: Ints
    row: Ints
    content: Ints
    records: Ragged
    own: list[str | None] | None

    def __len__(self) -> int:
        return len(self.document)

    def __getitem__(self, part: slice) -> "Items":
        offsets = self.records.offsets[part.start : part.stop + 1]
        records = Ragged(self.records.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        numbers: dict[str, Ints] = {name: getattr(self, name)[part] for name in _NUMBERS}
        return Items(**numbers, records=records, own=self.own and self.own[part])


def schema() -> Any:
    """Of annotations as they come. document: null if it is named by its id; part: of its row; own: the span's text."""
    arrow = need("pyarrow", PROBLEM)
    types = {
        "document": arrow.int64(), "id": arrow.large_string(), "start": arrow.int64(), "stop": arrow.int64(),
        "source": arrow.uint32(), "row": arrow.int64(), "part": arrow.int64(), "content": arrow.int64(),
        "record": arrow.large_binary(), "own": arrow.large_string(),
    }  # fmt: skip
    return arrow.schema(list(types.items()))


def as_batch(columns: Sequence[Any]) -> Any:
    """A record batch of annotations, of columns as `schema` has them."""
    arrow, kinds = need("pyarrow", PROBLEM), schema()
    arrays = [arrow.array(column, kind) for column, kind in zip(columns, kinds.types, strict=True)]
    return arrow.record_batch(arrays, schema=kinds)


def found_batch(found: Found, source: int, row: Ints) -> Any:
    """A record batch of what stands in a file. row: the number there of each annotation's."""
    arrow = need("pyarrow", PROBLEM)
    count, values = len(found.row), found.records.values
    buffers = [None, *map(arrow.py_buffer, (found.records.offsets * values.itemsize, values))]
    record = arrow.Array.from_buffers(arrow.large_binary(), count, buffers)
    own = arrow.nulls(count, arrow.large_string()) if found.own is None else found.own
    where = [np.full(count, source, np.uint32), row, found.part]
    return as_batch([found.document, found.id, found.start, found.stop, *where, found.content, record, own])


class Annotations:
    """Those in `rows`, batches as `schema` has them, which are kept in a file in `directory`.

    count: how many; offsets: whether any has some.
    """

    def __init__(self, database: Any, directory: str, rows: Iterable[Any]) -> None:
        self._database, self._directory = database, directory
        self._file = TemporaryFile(dir=directory)  # noqa: SIM115 - read below
        self._varied: set[str] = set()  # columns that do not hold 0 or null alone; the others need not be sorted
        self.count, self.offsets, self._named, self._last, self._largest = 0, False, False, -1, 0
        self._keep(schema(), map(self._note, rows))

    def _keep(self, kinds: Any, batches: Iterable[Any]) -> None:
        """In place of what was kept, from which they may be read."""
        arrow, kept = need("pyarrow", PROBLEM), TemporaryFile(dir=self._directory)  # noqa: SIM115 - read below
        file = arrow.ipc.new_stream(kept, kinds)
        for batch in batches:  # outside of `named`: an error of the system in `on_bad` is not one of these files
            with named(self._directory, "written"):
                file.write(batch)
        with named(self._directory, "written"):
            file.close()
            kept.flush()
        self._file.close()
        self._file = kept
        arrow.default_memory_pool().release_unused()  # DuckDB has its own

    def _note(self, batch: Any) -> Any:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self.count += batch.num_rows
        stop, row, part = (columns[name].to_numpy() for name in ("stop", "row", "part"))
        self.offsets = self.offsets or bool((stop != WHOLE).any())
        self._largest = max(self._largest, *(int(one.max(initial=0)) for one in (stop % WHOLE, row, part)))
        documents = columns["document"].drop_null().to_numpy()
        self._last = max(self._last, int(documents.max(initial=-1)))
        self._varied |= {name for name in ("source", "part", "content") if columns[name].to_numpy().any()}
        if columns["own"].null_count < batch.num_rows:
            self._varied.add("own")
        self._named = self._named or columns["document"].null_count > 0
        return batch

    def _query(self, database: Any, sql: str) -> Any:
        """Of `annotations`, which are read once."""
        self._file.seek(0)
        database.register("annotations", need("pyarrow", PROBLEM).ipc.open_stream(self._file))
        return database.sql(sql)

    def join(self, ds: Ranges, sources: Sequence[Source]) -> Iterator[Any]:
        """Tables of `Items`: all annotations by document, those of one as they came, and never in two tables.

        Raises: InputError for documents that are not there, and ids that several have.
        """
        if self._named:
            self._name(ds)
        if self._last >= ds.manifest.num_documents:
            raise self._unknown(ds, sources)
        # DuckDB sorts numbers of four bytes in half the time. WHOLE is 0, which is no stop.
        kind = "UINTEGER" if max(self._largest, ds.manifest.num_documents) < 1 << 32 else "BIGINT"
        keys = ["document", *(name for name in ("source", "row", "part") if name in {"row", *self._varied})]
        document = "coalesce(document, CASE WHEN found >= 0 THEN found END)" if self._named else "document"
        numbers = {**{name: name for name in keys}, "document": document, "start": "start", "stop": f"stop % {WHOLE}"}
        chosen = [f"({value})::{kind} AS {name}" for name, value in numbers.items()]
        chosen += ["record", *sorted(self._varied & {"content", "own"})]
        query = f"SELECT {', '.join(chosen)} FROM annotations"
        if self._named:  # joined first: DuckDB keeps to its memory in a join and in a sort, but not in both at once
            # The table is what is hashed: DuckDB, which does not know the number of the rows, would hash these.
            self._database.execute("SET disabled_optimizers = 'build_side_probe_side'")
            joined = self._query(self._database, f"{query} LEFT JOIN named USING (id)")
            with need("pyarrow", PROBLEM).RecordBatchReader.from_stream(joined) as batches:
                self._keep(batches.schema, self._found(_read(batches), ds, sources))
            self._database.execute("DROP TABLE named")
            query = "FROM annotations"
        return self._sorted(self._query(self._database, f"{query} ORDER BY {', '.join(keys)}"))

    def _sorted(self, joined: Any) -> Iterator[Any]:
        with self._file:
            yield from _by_document(joined)

    def _name(self, ds: Ranges) -> None:
        """The table `named`: where each id is found, see `find_many`, but that it may lack those that are MISSING."""
        if self.count >= ds.manifest.num_documents:  # to read all ids takes less time than to look up some
            load(self._database, "known", "id VARCHAR, number BIGINT", _known(ds))
            self._database.execute(
                f"CREATE TABLE named AS SELECT id, if(count(*) > 1, {AMBIGUOUS}, min(number)) AS found FROM known "
                "WHERE id <> '' GROUP BY id; DROP TABLE known"
            )
            return
        with self._database.cursor() as other:
            names = _ids(self._query(other, "SELECT DISTINCT id FROM annotations WHERE document IS NULL"))
            hashed = ((ids, hash_ids([*map(str.encode, ids)])) for ids in names)
            load(self._database, "asked", "id VARCHAR, hash UBIGINT", hashed)
            # In the order of the tables of hashes: all look-ups together read these once.
            asked = _ids(other.sql("SELECT id FROM asked ORDER BY hash"))
            load(self._database, "named", "id VARCHAR, found BIGINT", ((ids, find_many(ds, ids)) for ids in asked))
        self._database.execute("DROP TABLE asked")

    def _found(self, batches: Iterable[Any], ds: Ranges, sources: Sequence[Source]) -> Iterator[Any]:
        missing = 0
        for batch in batches:
            missing += batch.column("document").null_count
            yield batch
        if missing:
            raise self._unknown(ds, sources)

    def _unknown(self, ds: Ranges, sources: Sequence[Source]) -> InputError:
        """Of the first annotation whose document is not there, or not the only one."""
        documents = ds.manifest.num_documents
        joined, found = (" LEFT JOIN named USING (id)", "found") if self._named else ("", "NULL")
        with self._database.cursor() as other:
            ((source, row, text, number, count),) = self._query(
                other,
                f"SELECT source, row, id, coalesce(document, {found}, {MISSING}) AS number, count(*) OVER () FROM "
                f"annotations{joined} WHERE number < 0 OR number >= {documents} ORDER BY source, row LIMIT 1",
            ).fetchall()
        names = {MISSING: f"id {text!r}", AMBIGUOUS: f"id {text!r}, which several documents have"}
        if text and not (ds.manifest.shards.files["documents.hash"].size > 0).any():
            expected = f"the number of a document (key `document`), because {ds.path} keeps no ids"
        else:
            expected = f"an id of the {counted(documents, 'document')} of {ds.path} ({count} such annotations)"
        remedy = "name it by its number (key `document`)" if number == AMBIGUOUS else "remove the row"
        return InputError(sources[source].row_name(row), names.get(number, f"document {number}"), expected, remedy)


def _read(batches: Any) -> Iterator[Any]:
    """What DuckDB gives, some rows at a time. Raises: its errors."""
    try:
        for batch in batches:
            yield from (batch.slice(first, _ROWS) for first in range(0, len(batch), _ROWS))
    except OSError as error:  # as Arrow calls them
        raise need("duckdb", PROBLEM).Error(str(error)) from error


def _batches(query: Any, least: int) -> Iterator[Any]:
    """Tables of at least so many rows, but for the last."""
    arrow = need("pyarrow", PROBLEM)
    with arrow.RecordBatchReader.from_stream(query) as batches:
        held: list[Any] = []
        for batch in _read(batches):
            held.append(batch)
            if sum(map(len, held)) >= least:
                yield arrow.Table.from_batches(held)
                held = []
        if held:
            yield arrow.Table.from_batches(held)


def _known(ds: Ranges) -> Iterator[tuple[Any, Ints]]:
    """Ids of all documents, and their numbers."""
    arrow = need("pyarrow", PROBLEM)
    for first, offsets, texts in each_id(ds):
        count, buffers = len(offsets) - 1, [None, arrow.py_buffer(offsets), arrow.py_buffer(texts)]
        yield arrow.Array.from_buffers(arrow.large_string(), count, buffers), np.arange(first, first + count)


def _ids(query: Any) -> Iterator[list[str]]:
    """Some at a time."""
    return (some["id"].to_pylist() for some in _batches(query, _IDS))


def _by_document(query: Any) -> Iterator[Any]:
    """Tables of a sorted query, cut where a document ends."""
    held = None
    for table in _batches(query, 1):
        held = table if held is None else need("pyarrow", PROBLEM).concat_tables([held, table])
        documents = held["document"].to_numpy()
        cut = int(np.searchsorted(documents, documents[-1]))
        if cut:
            yield held[:cut]
        held = held[cut:]
    if held is not None:
        yield held


def items_of(table: Any) -> Items:
    """What a table of `Annotations.join` holds."""
    table = table.combine_chunks()
    none = np.zeros(len(table), np.int64)
    numbers: dict[str, Ints] = {
        name: table[name].to_numpy().astype(np.int64) if name in table.column_names else none for name in _NUMBERS
    }
    numbers["stop"][numbers["stop"] == 0] = WHOLE
    record = table["record"].cast("large_binary").chunk(0)
    _, places, data = record.buffers()
    offsets = np.frombuffer(places, np.int64)[record.offset : record.offset + len(record) + 1]
    values = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    own = table["own"].to_pylist() if "own" in table.column_names else None
    records = Ragged(values, offsets - offsets[0])
    return Items(**numbers, records=records, own=own if own and any(text is not None for text in own) else None)
