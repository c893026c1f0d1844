"""Annotations with the numbers of their documents, in the order of these: joined and sorted by DuckDB."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.errors import InputError
from conceptloader.format.read.ids import AMBIGUOUS, MISSING, find_many
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.spec.columns import Ints
from conceptloader.ingest.annotate.columns import Found
from conceptloader.ingest.annotate.rows import WHOLE
from conceptloader.ingest.database import PROBLEM, load
from conceptloader.ingest.records.batch import Ragged
from conceptloader.ingest.records.inputs import Source

COLUMNS = (
    "document BIGINT, id VARCHAR, start BIGINT, stop BIGINT, source UINTEGER, row BIGINT, part UINTEGER, "
    "content BIGINT, record BLOB, own VARCHAR"
)
"""document: None if it is named by its id; part: of the row, in its order; own: its text."""


@dataclass(frozen=True)
class Items:
    """Annotations, as `COLUMNS` has them, in the order of their documents."""

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
        records = self.records.take(np.arange(len(self))[part])
        numbers = (self.document, self.start, self.stop, self.source, self.row, self.content)
        return Items(*(column[part] for column in numbers), records, self.own and self.own[part])


_IDS = 1 << 20  # looked up at a time
_BATCH = 1 << 17  # annotations that are placed at a time, with the rest of a document


class Annotations:
    """Those that `rows` yields, some at a time, as columns. count: how many; offsets: whether any has some."""

    def __init__(self, database: Any, rows: Iterable[Sequence[Any]]) -> None:
        self._database = database
        load(database, "annotations", COLUMNS, rows)
        totals = f"SELECT count(*), coalesce(bool_or(stop <> {WHOLE}), false) FROM annotations"
        self.count, self.offsets = database.execute(totals).fetchone()

    def join(self, ds: Ranges, sources: Sequence[Source]) -> Iterator[Items]:
        """All annotations by document, those of one as they came, and never in two batches.

        Raises: InputError for documents that are not there, and ids that several have.
        """
        names = self._database.cursor().execute("SELECT DISTINCT id FROM annotations WHERE document IS NULL")
        texts = iter(lambda: [name for (name,) in names.fetchmany(_IDS)], [])
        load(self._database, "named", "id VARCHAR, found BIGINT", ((some, find_many(ds, some)) for some in texts))
        self._database.execute(
            "CREATE VIEW joined AS SELECT a.* REPLACE (coalesce(document, found) AS document) "
            "FROM annotations a LEFT JOIN named USING (id)"
        )
        self._check(ds, sources)
        return _by_document(self._database.sql("FROM joined ORDER BY document, source, row, part"))

    def _check(self, ds: Ranges, sources: Sequence[Source]) -> None:
        documents = ds.manifest.num_documents
        wrong = f"FROM joined WHERE document < 0 OR document >= {documents}"
        first = self._database.execute(
            f"SELECT source, row, id, document {wrong} ORDER BY source, row LIMIT 1"
        ).fetchone()
        if first is None:
            return
        source, row, text, number = first
        (count,) = self._database.execute(f"SELECT count(*) {wrong}").fetchone()
        found = {MISSING: f"id {text!r}", AMBIGUOUS: f"id {text!r}, which several documents have"}
        if text and not (ds.manifest.shards.files["documents.hash"].size > 0).any():
            expected = f"the number of a document (key `document`), because {ds.path} keeps no ids"
        else:
            expected = f"one of the {documents} documents of {ds.path} ({count} such annotations)"
        remedy = "name it by its number (key `document`)" if number == AMBIGUOUS else "remove the row"
        raise InputError(sources[source].row_name(row), found.get(number, f"document {number}"), expected, remedy)


def as_columns(found: Found, source: int, first: int) -> Sequence[Any]:
    """Annotations of a batch that begins with row `first` of a file as `COLUMNS`."""
    arrow = need("pyarrow", PROBLEM)
    count, (values, offsets) = len(found.row), (found.records.values, found.records.offsets)
    places = arrow.py_buffer(offsets * values.itemsize)
    record = arrow.Array.from_buffers(arrow.large_binary(), count, [None, places, arrow.py_buffer(values)])
    own = arrow.nulls(count) if found.own is None else found.own
    return [
        found.document, found.id, found.start, found.stop, np.full(count, source, np.uint32), found.row + first,
        found.part, found.content, record, own,
    ]  # fmt: skip


def _by_document(rows: Any) -> Iterator[Items]:
    """Batches of a sorted query, cut where a document ends."""
    arrow = need("pyarrow", PROBLEM)
    with rows.to_arrow_reader(_BATCH) as batches:
        held = batches.schema.empty_table()
        for batch in batches:
            held = arrow.concat_tables([held, arrow.Table.from_batches([batch])])
            documents = held["document"].to_numpy()
            cut = int(np.searchsorted(documents, documents[-1]))
            if cut:
                yield _items(held[:cut])
            held = held[cut:]
        if len(held):
            yield _items(held)


def _items(table: Any) -> Items:
    table = table.combine_chunks()
    numbers = [table[name].to_numpy() for name in ("document", "start", "stop", "source", "row", "content")]
    record, own = table["record"].cast("large_binary").chunk(0), table["own"]
    _, places, data = record.buffers()
    offsets = np.frombuffer(places, np.int64)[record.offset : record.offset + len(record) + 1]
    values = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data else np.empty(0, np.uint8)
    texts = own.to_pylist() if own.null_count < len(own) else None
    return Items(*numbers, Ragged(values, offsets - offsets[0]), texts)
