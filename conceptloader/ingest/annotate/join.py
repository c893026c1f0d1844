"""Annotations with the numbers of their documents, in the order of these: joined and sorted by DuckDB."""

from collections.abc import Iterable, Iterator, Sequence
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.base.terminal import counted
from conceptloader.errors import InputError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.ids import AMBIGUOUS, MISSING, each_id, find_many
from conceptloader.format.spec.columns import Ints
from conceptloader.ingest.annotate.rows import WHOLE
from conceptloader.ingest.database import PROBLEM, load
from conceptloader.ingest.records.batch import Ragged
from conceptloader.ingest.records.inputs import Source
from conceptloader.storage.reads import named

_IDS, _ROWS = 1 << 17, 1 << 15  # looked up, placed at a time


class Items:
    """Annotations by document: columns of `Rows` as arrays of numbers; nth: which each is of all."""

    def __init__(self, table: Any) -> None:
        self._table = table.combine_chunks()

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, part: slice) -> "Items":
        return Items(self._table[part])

    def __getattr__(self, name: str) -> Ints:
        found: Ints = self._table[name].to_numpy().astype(np.int64)
        return found

    @property
    def records(self) -> Ragged:
        column = self._table["record"].cast("large_binary").chunk(0)
        _, places, data = column.buffers()
        offsets = np.frombuffer(places, np.int64)[column.offset : column.offset + len(column) + 1]
        return Ragged(np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]], offsets - offsets[0])

    @property
    def own(self) -> list[str | None] | None:
        column = self._table["own"] if "own" in self._table.column_names else None
        return None if column is None or column.null_count == len(column) else column.to_pylist()


class _Kept:
    """Tables in a file in `directory`, in place of memory of DuckDB; `query` reads them once as `given`."""

    def __init__(self, directory: str, tables: Iterable[Any]) -> None:
        self._directory, self._file, writer = directory, TemporaryFile(dir=directory), None  # noqa: SIM115
        for table in tables:  # outside of `named`: an error of the system in them is not one of this file
            with named(directory, "written"):
                writer = writer or need("pyarrow", PROBLEM).ipc.new_stream(self._file, table.schema)
                writer.write(table)
        with named(directory, "written"):
            if writer is not None:
                writer.close()
            self._file.flush()

    def query(self, database: Any, sql: str) -> Any:
        self._file.seek(0)
        database.register("given", need("pyarrow", PROBLEM).ipc.open_stream(self._file))
        return database.sql(sql)


class Annotations:
    """Those in `rows`, tables as `Rows` has them. count: how many; offsets: whether any has some."""

    def __init__(
        self, database: Any, directory: str, rows: Iterable[Any], ds: Dataset, sources: Sequence[Source]
    ) -> None:
        self._database, self._directory, self._ds, self._sources = database, directory, ds, sources
        self.count, self.offsets, self._named, self._own, self._wrong = 0, False, False, False, False
        self._rows = _Kept(directory, map(self._note, rows))

    def _note(self, table: Any) -> Any:
        nth = np.arange(self.count, self.count + len(table))
        self.count += len(table)
        self.offsets = self.offsets or bool((table["stop"].to_numpy() != WHOLE).any())
        self._named = self._named or table["document"].null_count > 0
        self._own = self._own or table["own"].null_count < len(table)
        return self._checked(table.append_column("nth", [nth]))

    def _checked(self, table: Any) -> Any:
        documents = table["document"].drop_null().to_numpy()
        self._wrong = self._wrong or bool(((documents < 0) | (documents >= self._ds.manifest.num_documents)).any())
        return table

    def join(self) -> Iterator[Items]:
        """All by document, those of one as they came, and never in two.

        Raises: InputError for documents that are not there, and ids that several have.
        """
        kept, own = self._rows, ", own" if self._own else ""
        if self._named:  # joined, then sorted: DuckDB keeps to its memory in each, but not in both at once
            self._name()
            # The table is what is hashed: DuckDB, which does not know the number of the rows, would hash these.
            self._database.execute("SET disabled_optimizers = 'build_side_probe_side'")
            joined = self._rows.query(
                self._database,
                f"SELECT coalesce(document, number, {MISSING}) AS document, nth, start, stop, record{own} "
                "FROM given LEFT JOIN named USING (id)",
            )
            kept = _Kept(self._directory, map(self._checked, _batches(joined, _ROWS)))
        documents = self._ds.manifest.num_documents
        if self._wrong:
            wrong = (
                f"SELECT nth, document, count(*) OVER () FROM given WHERE document NOT BETWEEN 0 AND {documents - 1}"
            )
            raise self._unknown(*kept.query(self._database, f"{wrong} ORDER BY nth LIMIT 1").fetchall()[0])
        # DuckDB sorts numbers of four bytes in half the time.
        kind = "UINTEGER" if max(self.count, documents) < 1 << 32 else "BIGINT"
        columns = f"document::{kind} AS document, nth::{kind} AS nth, start, stop, record{own}"
        return _by_document(kept.query(self._database, f"SELECT {columns} FROM given ORDER BY document, nth"))

    def where(self, nth: int) -> str:
        """What messages call the row of an annotation."""
        return self._of(nth)[0]

    def _of(self, nth: int) -> tuple[str, str | None]:
        """(that, the id in it)."""
        with self._database.cursor() as other:
            asked = self._rows.query(other, f"SELECT source, row, id FROM given WHERE nth = {nth}")
            ((source, row, name),) = asked.fetchall()
        return self._sources[source].row_name(row), name

    def _name(self) -> None:
        """Make the table `named`: the number of the document with each id that annotations have, or what is wrong."""
        execute, ds = self._database.execute, self._ds
        self._rows.query(self._database, "SELECT DISTINCT id FROM given WHERE document IS NULL").create("asked")
        ((asked,),) = execute("SELECT count(*) FROM asked").fetchall()
        if asked > ds.manifest.num_documents // 8:  # to read all ids takes less time than to look them up
            known: Iterator[Any] = _known(ds)
        else:
            some = (batch["id"].to_pylist() for batch in _batches(self._database.cursor().sql("FROM asked"), _IDS))
            known = ((names, find_many(ds.files, names)) for names in some)
        load(self._database, "known", "id VARCHAR, number BIGINT", known)
        execute(
            f"CREATE TABLE named AS SELECT id, CASE WHEN count(*) = 1 THEN min(number) ELSE {AMBIGUOUS} END AS number "
            "FROM known SEMI JOIN asked USING (id) GROUP BY id"
        )
        execute("DROP TABLE known")
        execute("DROP TABLE asked")

    def _unknown(self, nth: int, number: int, count: int) -> InputError:
        """Of the first annotation whose document is not there, or not the only one."""
        ds, (where, name) = self._ds, self._of(nth)
        found = {MISSING: f"id {name!r}", AMBIGUOUS: f"id {name!r}, which several documents have"}
        documents = counted(ds.manifest.num_documents, "document")
        expected = f"an id of the {documents} of {ds.path} ({count} such annotations)"
        if name and not (ds.manifest.shards.files["documents.hash"].size > 0).any():
            expected = f"the number of a document (key `document`), because {ds.path} keeps no ids"
        remedy = "name it by its number (key `document`)" if number == AMBIGUOUS else "remove the row"
        return InputError(where, found.get(number, f"document {number}"), expected, remedy)


def _known(ds: Dataset) -> Iterator[tuple[Any, Ints]]:
    """Ids of all documents, and their numbers."""
    arrow = need("pyarrow", PROBLEM)
    for first, offsets, texts in each_id(ds.files):
        count, buffers = len(offsets) - 1, [None, arrow.py_buffer(offsets), arrow.py_buffer(texts)]
        yield arrow.Array.from_buffers(arrow.large_string(), count, buffers), np.arange(first, first + count)


def _by_document(query: Any) -> Iterator[Items]:
    """Sorted rows, cut where a document ends."""
    arrow, held = need("pyarrow", PROBLEM), None
    for batch in _batches(query, _ROWS):
        table = arrow.Table.from_batches([batch])
        held = table if held is None else arrow.concat_tables([held, table])
        documents = held["document"].to_numpy()
        if cut := int(np.searchsorted(documents, documents[-1])):
            yield Items(held[:cut])
            held = held[cut:]
    if held is not None:
        yield Items(held)


def _batches(query: Any, rows: int) -> Iterator[Any]:
    """What DuckDB gives, so many rows at a time. Raises: its errors."""
    try:
        with need("pyarrow", PROBLEM).RecordBatchReader.from_stream(query) as batches:
            for batch in batches:
                yield from (batch.slice(first, rows) for first in range(0, len(batch), rows))
    except OSError as error:  # as Arrow calls them
        raise need("duckdb", PROBLEM).Error(str(error)) from error
