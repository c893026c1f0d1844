"""Annotations as they stand in jsonl or parquet files, turned into items: document, [start, end), record."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import xxhash

from conceptloader.errors import ConfigError
from conceptloader.format.spec.codecs import Codec
from conceptloader.format.spec.layout import MAX_RECORD_BYTES
from conceptloader.ingest.records.columns import OWN_TEXT, own_text
from conceptloader.ingest.records.documents import check_id, check_own
from conceptloader.ingest.records.vocabulary import Concepts

WHOLE = (1 << 62) - 1  # the end of an annotation of a whole document
Annotation = tuple[int, int, bytes, str | None]  # start, end, record, the text that it says it has


def digest(content: Any) -> int:
    """Of a text, or of a list of tokens: 63 bits, never 0. Raises: ValueError for anything else."""
    try:
        data = content.encode("utf-8") if isinstance(content, str) else np.array(content, "<u4").tobytes()
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"content: found {content!r:.100}, expected a text or a list of tokens") from error
    return xxhash.xxh3_64_intdigest(data) >> 1 or 1


class RowParser:
    """One JSON object or parquet row to annotations.

    A row names its document by `id` (its external id) or `document` (its number in the dataset), and has either
    `spans`, a list of {start, end, V}, or start, end and V itself, or only V, which then belongs to the whole
    document. V is `concepts`, a list of names or ids, for codec concepts, and `scores`, if the track has any; for other
    codecs it is `value`. columns: what these are called in the rows, where that differs; in columns that stand for
    `concepts` and `scores`, one may stand without a list. `content`, only if named there,
    is the text of the document, or the list of its tokens, to be compared with the dataset's. Next to start and end,
    one of OWN_TEXT is the text of the span.

    Records of concepts are those of `Concepts.pairs`.
    """

    def __init__(
        self, codec: Codec, concepts: Concepts | None, ignored: Collection[str], columns: Mapping[str, str]
    ) -> None:
        self._codec = codec
        self._scalars = hasattr(codec, "dtype")  # records of codec numpy are arrays; a number stands for one of one
        self._concepts = concepts
        self._value = "value" if concepts is None else "concepts"
        self._keys = {"start", "end", "value"} if concepts is None else concepts.keys
        ours = {"id", "document", "spans", *self._keys, OWN_TEXT[0]}
        if unknown := sorted(columns.keys() - ours - {"content"}):
            raise ConfigError(
                "columns", repr(unknown[0]), f"some of {', '.join(sorted(ours))}", "correct --column OURS=THEIRS"
            )
        self._label = "concepts" in columns  # which may hold a single one
        self._theirs, self._ours = columns, {theirs: name for name, theirs in columns.items()}
        self._known, self.ignored = frozenset({*ours, *columns, *OWN_TEXT}), frozenset(ignored)
        spans = columns.get("spans", "spans") + "."
        # A text that is ignored is that of the document, unless it says that it is a span's.
        self._ignored_fields = self.ignored.difference(OWN_TEXT) | {
            name.removeprefix(spans) for name in ignored if name.startswith(spans)
        }
        # Labels of `datasets` in these are numbers, not names.
        self.values = [columns.get(name, name) for name in ("value", "spans")] if concepts is None else []
        self.unseen = set(columns.values())  # of the columns that were named, those that no row had so far

    def parse(self, row: Mapping[str, Any]) -> tuple[int | None, str, list[Annotation], int]:
        """(number of the document, or None; its external id, or ""; annotations; `digest` of its content, or 0).

        Raises: ValueError that says what is wrong.
        """
        row = self._renamed(row, self.ignored)
        unknown = sorted(row.keys() - self._known)
        if row.get("end") is None:  # then a text is not that of a span
            unknown += [name for name in OWN_TEXT if name in row]
        if unknown:
            raise ValueError(
                f"found column {unknown[0]!r}, expected some of id, document, spans, {self._expected(row)}; "
                "omit it (--ignore-column)"
            )
        external, number = check_id(row.get("id")), row.get("document")
        if bool(external) == (number is not None):
            raise ValueError(f"found id {row.get('id')!r:.100} and document {number!r:.100}, expected one of the two")
        if number is not None and (type(number) is not int or not 0 <= number < WHOLE):
            raise ValueError(f"document: found {number!r:.100}, expected the number of a document, from 0")
        spans = row.get("spans")
        content = digest(row["content"]) if "content" in row else 0
        nothing = row.get("value", row) is None and row.get("start") is None and row.get("end") is None
        if spans is None and self._scalars and self._concepts is None and nothing:
            return number, external, [], content  # no number, as in a build
        if spans is None:
            return number, external, [self._annotation(row, True)], content
        if not isinstance(spans, list) or self._keys & {k for k in row if row[k] is not None}:
            raise ValueError(f"found spans together with {self._expected(row)}, or no list, expected a list of spans")
        found = []
        for i, span in enumerate(spans):
            try:
                found.append(self._annotation(span, False))
            except ValueError as error:
                raise ValueError(f"spans[{i}]: {error}") from error
        return number, external, found, content

    def _expected(self, found: Collection[str]) -> str:
        return "start, end and value" if self._concepts is None else self._concepts.expected(found)

    def _renamed(self, found: Mapping[str, Any], ignored: frozenset[str]) -> Mapping[str, Any]:
        """By our names, without what is ignored."""
        if ignored & found.keys():
            found = {name: value for name, value in found.items() if name not in ignored}
        if not self._ours:
            return found
        stray = next((name for name in self._theirs if name in found and name not in self._ours), None)
        if stray is not None:
            raise ValueError(
                f"found column {stray!r}, expected {self._theirs[stray]!r} alone, which stands for it; omit it "
                "(--ignore-column)"
            )
        self.unseen -= found.keys()
        return {self._ours.get(name, name): value for name, value in found.items()}

    def _annotation(self, span: Any, is_row: bool) -> Annotation:
        if not isinstance(span, dict):
            raise ValueError(f"found {span!r:.100}, expected an object with {self._expected(())}")
        span = span if is_row else self._renamed(span, self._ignored_fields)
        start, end = span.get("start"), span.get("end")
        if is_row and start is None and end is None:
            start, end = 0, WHOLE
        elif not is_row and span.keys() != self._keys and own_text(span, self._keys) is None:
            raise ValueError(f"found {span!r:.100}, expected exactly {self._expected(span)}")
        elif type(start) is not int or type(end) is not int or not 0 <= start < end < WHOLE:
            raise ValueError(f"found [{start!r:.50}, {end!r:.50}), expected integers 0 <= start < end")
        if self._value not in span:
            raise ValueError(f"found no {self._value!r}, expected one for each annotation")
        value, scores = span[self._value], span.get("scores")
        if self._label and isinstance(value, (str, int)):
            value, scores = [value], scores if isinstance(scores, list) else [scores]
        if self._concepts is None:
            record = self._codec.encode([value] if isinstance(value, (int, float)) and self._scalars else value)
        elif isinstance(value, list):
            ids = [self._concepts.id(concept) for concept in value]
            scores = self._concepts.scores(scores, len(ids)) if "scores" in self._keys else None
            record = self._concepts.pairs(ids, scores).tobytes()
        else:
            raise ValueError(f"concepts: found {value!r:.100}, expected a list of names or ids")
        if len(record) > MAX_RECORD_BYTES:
            raise ValueError(f"found a record of {len(record)} bytes, expected at most {MAX_RECORD_BYTES}")
        names = [name for name in OWN_TEXT if span.get(name) is not None] if end != WHOLE else []
        if names[1:]:
            raise ValueError(f"found {' and '.join(names)}, expected one text of the span; omit one (--ignore-column)")
        return start, end, record, check_own(span[names[0]], names[0]) if names else None
