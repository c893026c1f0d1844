"""Annotations as they stand in jsonl or parquet files, turned into items: document, [start, end), record."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.spec.codecs import Codec
from conceptloader.format.spec.layout import MAX_RECORD_BYTES
from conceptloader.ingest.rows.records import check_id
from conceptloader.ingest.rows.vocabulary import Concepts

WHOLE = (1 << 62) - 1  # the end of an annotation of a whole document
ITEM = np.dtype(
    [("document", "<i8"), ("start", "<i8"), ("end", "<i8"), ("size", "<u4"), ("source", "<u4"), ("row", "<i8")]
)


@dataclass
class Items:
    """items: ITEM [n]; records: their n records. An item with an external id has its document in `ids` only."""

    items: NDArray[np.void]
    records: list[bytes]
    ids: list[str]


class RowParser:
    """One JSON object or parquet row to annotations.

    A row names its document by `id` (its external id) or `document` (its number in the dataset), and has either
    `spans`, a list of {start, end, V}, or start, end and V itself, or only V, which then belongs to the whole
    document. V is `concepts`, a list of names or ids, for codec concepts, else `value`.
    """

    def __init__(self, codec: Codec, concepts: Concepts | None, ignored: Collection[str]) -> None:
        self._codec = codec
        self._concepts = concepts
        self._value = "value" if concepts is None else "concepts"
        self._ignored = frozenset(ignored)
        self._known = frozenset({"id", "document", "spans", "start", "end", self._value}) | self._ignored
        self._rows: list[tuple[int, int, int, int, int, int]] = []
        self._records: list[bytes] = []
        self._ids: list[str] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: Mapping[str, Any], source: int, number: int) -> int:
        """Returns: bytes of memory that its annotations take. Raises: ValueError that says what is wrong."""
        unknown = sorted(row.keys() - self._known)
        if unknown:
            raise ValueError(
                f"found column {unknown[0]!r}, expected some of id, document, spans, start, end, {self._value}; "
                "leave it out (--ignore-column)"
            )
        document, external = self._document(row)
        spans = row.get("spans")
        if spans is None:
            spans = [row]
        elif not isinstance(spans, list) or {"start", "end", self._value} & {k for k in row if row[k] is not None}:
            raise ValueError(f"found spans beside start, end or {self._value}, or no list, expected a list of spans")
        size = 0
        for i, span in enumerate(spans):
            try:
                start, end = self._place(span, row is span)
                record = self._encode(span)
            except ValueError as error:
                if span is row:
                    raise
                raise ValueError(f"spans[{i}]: {error}") from error
            if len(record) > MAX_RECORD_BYTES:
                raise ValueError(f"found a record of {len(record)} bytes, expected at most {MAX_RECORD_BYTES}")
            self._rows.append((document, start, end, len(record), source, number))
            self._records.append(record)
            self._ids.append(external)
            size += len(record) + 150
        return size

    def _document(self, row: Mapping[str, Any]) -> tuple[int, str]:
        external, number = check_id(row.get("id")), row.get("document")
        if bool(external) == (number is not None):
            raise ValueError(f"found id {row.get('id')!r:.100} and document {number!r:.100}, expected one of the two")
        if number is not None and (type(number) is not int or number < 0):
            raise ValueError(f"document: found {number!r:.100}, expected the number of a document, from 0")
        return (-1 if number is None else number), external

    def _place(self, span: Any, may_be_whole: bool) -> tuple[int, int]:
        if not isinstance(span, dict):
            raise ValueError(f"found {span!r:.100}, expected an object with start, end and {self._value}")
        start, end = span.get("start"), span.get("end")
        if may_be_whole and start is None and end is None:
            return 0, WHOLE
        if not may_be_whole and span.keys() != {"start", "end", self._value}:
            raise ValueError(f"found {span!r:.100}, expected exactly start, end and {self._value}")
        if type(start) is not int or type(end) is not int or not 0 <= start < end < WHOLE:
            raise ValueError(f"found [{start!r:.50}, {end!r:.50}), expected integers 0 <= start < end")
        return start, end

    def _encode(self, span: Mapping[str, Any]) -> bytes:
        if self._value not in span:
            raise ValueError(f"found no {self._value!r}, expected one for each annotation")
        value = span[self._value]
        if self._concepts is None:
            return self._codec.encode([value] if isinstance(value, (int, float)) and self._scalars else value)
        if not isinstance(value, list):
            raise ValueError(f"concepts: found {value!r:.100}, expected a list of names or ids")
        return np.array([self._concepts.id(concept) for concept in value], "<u4").tobytes()

    @property
    def _scalars(self) -> bool:
        """The records of codec numpy are arrays; a number stands for an array of one."""
        return hasattr(self._codec, "dtype")

    def take(self) -> Items:
        """What was added since the last call."""
        result = Items(np.array(self._rows, ITEM), self._records, self._ids)
        self._rows, self._records, self._ids = [], [], []
        return result
