"""Annotations with the numbers of their documents, in the order of these: joined and sorted by DuckDB."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.packages import need
from conceptloader.base.terminal import counted
from conceptloader.errors import InputError
from conceptloader.format.read.ids import AMBIGUOUS, MISSING, find_many
from conceptloader.format.read.ranges import Ranges
from conceptloader.ingest.annotate.rows import ITEM, WHOLE
from conceptloader.ingest.database import PROBLEM, load
from conceptloader.ingest.records.inputs import Source

COLUMNS = (
    "number BIGINT, document BIGINT, id VARCHAR, start BIGINT, stop BIGINT, source UINTEGER, row BIGINT, "
    "content BIGINT, record BLOB, own VARCHAR"
)
"""number: of the annotation, in the order of the input; document: None if it is named by its id; own: its text."""

Batch = tuple[NDArray[np.void], list[bytes], list[str | None] | None]
"""Annotations (dtype ITEM), their records, and the texts that they say they have, None if none does."""

_IDS = 1 << 20  # looked up at a time


class Annotations:
    """Those that `rows` yields, some at a time, as columns. count: how many; offsets: whether any has some."""

    def __init__(self, database: Any, rows: Iterable[Sequence[Any]]) -> None:
        self._database = database
        load(database, "annotations", COLUMNS, rows)
        totals = f"SELECT count(*), coalesce(bool_or(stop <> {WHOLE}), false) FROM annotations"
        self.count, self.offsets = database.execute(totals).fetchone()

    def join(self, ds: Ranges, sources: Sequence[Source]) -> Iterator[Batch]:
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
        return _by_document(self._database.sql("FROM joined ORDER BY document, number"))

    def _check(self, ds: Ranges, sources: Sequence[Source]) -> None:
        documents = ds.manifest.num_documents
        wrong = f"FROM joined WHERE document < 0 OR document >= {documents}"
        first = self._database.execute(f"SELECT source, row, id, document {wrong} ORDER BY number LIMIT 1").fetchone()
        if first is None:
            return
        source, row, text, number = first
        (count,) = self._database.execute(f"SELECT count(*) {wrong}").fetchone()
        found = {MISSING: f"id {text!r}", AMBIGUOUS: f"id {text!r}, which several documents have"}
        if text and not (ds.manifest.shards.files["documents.hash"].size > 0).any():
            expected = f"the number of a document (key `document`), because {ds.path} keeps no ids"
        else:
            expected = f"an id of the {counted(documents, 'document')} of {ds.path} ({count} such annotations)"
        remedy = "name it by its number (key `document`)" if number == AMBIGUOUS else "remove the row"
        raise InputError(sources[source].row_name(row), found.get(number, f"document {number}"), expected, remedy)


def _by_document(rows: Any) -> Iterator[Batch]:
    """Batches of a sorted query, cut where a document ends."""
    arrow = need("pyarrow", PROBLEM)
    with arrow.RecordBatchReader.from_stream(rows) as batches:
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


def _items(table: Any) -> Batch:
    items = np.empty(len(table), ITEM)
    for name in ITEM.names or ():
        items[name] = table[name].to_numpy()
    own = table["own"]
    return items, table["record"].to_pylist(), own.to_pylist() if own.null_count < len(own) else None
