"""Annotations in record batches of parquet and Arrow files: by column, and which rows have to be looked at singly."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.layout import MAX_RECORD_BYTES
from conceptloader.ingest.annotate.rows import WHOLE, RowParser, digest
from conceptloader.ingest.parquet import is_list, is_text, list_parts
from conceptloader.ingest.records.batch import Ragged
from conceptloader.ingest.records.columns import OWN_TEXT, own_text
from conceptloader.ingest.records.vocabulary import Concepts

Bools = NDArray[np.bool_]


class Found(NamedTuple):
    """Annotations of a batch by column. row: whose each is; part: its place in that; records: concepts or numbers.

    document, id, own: arrays of Arrow's, with nulls.
    """

    document: Any
    id: Any
    start: Ints
    stop: Ints
    row: Ints
    part: Ints
    content: Ints
    records: Ragged
    own: Any


class _Ranges(NamedTuple):
    """What rows or spans annotate, of which those in `odd` mean nothing."""

    start: Ints
    stop: Ints
    records: Ragged
    own: Any
    odd: Bools


class BatchParser(RowParser):
    """A `RowParser` that takes batches of rows, too."""

    def batch_of(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """A record batch of objects of JSON, or None if some have other keys or types, which columns would hide."""
        import pyarrow as pa

        name, value, scores = (self._theirs.get(name, name) for name in ("spans", "value", "scores"))
        spans = [span for row in rows if type(row.get(name)) is list for span in row[name]]
        if len({tuple(span) if type(span) is dict else None for span in spans}) > 1:
            return None
        parts = [*rows, *(span for span in spans if type(span) is dict)]
        # Arrow makes floats of integers beside them, rounded to fit a record, and of true.
        if self._concepts is None and len(_types(part.get(value) for part in parts)) > 1:
            return None
        if "scores" in self._keys and bool in _types(part.get(scores) for part in parts):
            return None
        try:
            return pa.RecordBatch.from_struct_array(pa.array(rows))
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return None

    def parse_batch(self, table: Any) -> tuple[list[Found], Bools]:
        """(annotations of the rows of a record batch; bool [rows], which of these have to be given to `parse`).

        Nothing is wrong with the other ones. Those that have to are all where a column is of no type that is looked at
        here, or a codec takes objects of Python.
        """
        import pyarrow as pa

        try:
            table.validate(full=True)  # texts are UTF-8
            found = self._renamed(dict(zip(table.schema.names, table.columns, strict=True)), self.ignored)
            if found.keys() <= self._known:
                return self._parse(found, table.num_rows)
        except (ValueError, pa.ArrowException):  # `parse` says what is wrong, if anything is
            pass
        return [], np.ones(table.num_rows, bool)

    def _parse(self, given: Mapping[str, Any], count: int) -> tuple[list[Found], Bools]:
        import pyarrow as pa
        import pyarrow.compute as pc

        ids, (number, numbered) = _texts(given.get("id"), count), _integers(given.get("document"), count)
        named = _bools(pc.not_equal(ids, ""))
        odd = (named == numbered) | _bools(pc.match_substring(ids, "\0"))
        odd |= numbered & ((number < 0) | (number >= WHOLE))
        content = np.zeros(count, np.int64)
        if "content" in given:
            content = _digests(given["content"])
            odd |= content == 0
        documents = pa.nulls(count, pa.int64()) if not numbered.any() else given["document"].cast(pa.int64())

        def chosen(which: Ints, row: Ints, part: Ints, ranges: _Ranges) -> Found:
            """Of `ranges` those at `which`, which belong to these rows."""
            start, stop, records, own, _ = ranges
            if len(which) < len(start):
                start, stop, records = start[which], stop[which], records.take(which)
                own = None if own is None else own.take(which)
            return Found(documents.take(row), ids.take(row), start, stop, row, part, content[row], records, own)

        spans, found = given.get("spans"), []
        listed = np.zeros(count, bool) if spans is None else _bools(spans.is_valid())
        if listed.any():
            for name in self._keys & given.keys():
                odd |= listed & _bools(given[name].is_valid())
            if any(name in given for name in OWN_TEXT):
                odd |= listed
            structs, offsets = _lists(spans)
            if len(structs):
                row = np.repeat(np.arange(count), np.diff(offsets))
                ranges = self._ranges(self._fields(structs), len(structs), False)
                odd[row[ranges.odd]] = True
                which = np.flatnonzero(~odd[row])
                found.append(chosen(which, row[which], (np.arange(len(row)) - offsets[row])[which], ranges))
        if not listed.all():
            ranges = self._ranges(given, count, True)
            odd |= ranges.odd & ~listed
            row = np.flatnonzero(~odd & ~listed)
            found.append(chosen(row, row, np.zeros_like(row), ranges))
        return found, odd

    def _fields(self, structs: Any) -> Mapping[str, Any]:
        """The fields of spans, by our names. Raises: ValueError for what is no span, or not for sure."""
        import pyarrow as pa

        if not pa.types.is_struct(structs.type):
            raise ValueError
        names = [field.name for field in structs.type]
        found = self._renamed(dict(zip(names, structs.flatten(), strict=True)), self._ignored_fields)
        if len(set(names)) < len(names) or (found.keys() != self._keys and own_text(found, self._keys) is None):
            raise ValueError
        return found

    def _ranges(self, given: Mapping[str, Any], count: int, is_row: bool) -> _Ranges:
        """As `_annotation` has it."""
        import pyarrow.compute as pc

        start, begins = _integers(given.get("start"), count)
        stop, ends = _integers(given.get("end"), count)
        inside = begins & ends & (start >= 0) & (start < stop) & (stop < WHOLE)
        texts = [_texts(given[name], count, False) for name in OWN_TEXT if name in given]
        whole = ~begins & ~ends & (is_row and not texts)
        records, odd = self._records(given, count)
        odd |= ~inside & ~whole
        own = None
        for text in texts:
            odd |= _bools(text.is_valid()) & (own is not None and _bools(own.is_valid()))
            own = text if own is None else pc.coalesce(own, text)
        return _Ranges(start, np.where(whole, WHOLE, stop), records, own, odd)

    def _records(self, given: Mapping[str, Any], count: int) -> tuple[Ragged, Bools]:
        """(records; bool [count], which of them are none)."""
        values = given.get(self._value)
        if values is None:
            raise ValueError
        if self._concepts is None:
            return _numbers(values, getattr(self._codec, "dtype", None))
        odd = _bools(values.is_null())
        single = self._label and not is_list(values.type)
        values, offsets = (values, np.arange(count + 1)) if single else _lists(values)
        ids, wrong = _concept_ids(values, self._concepts)
        concepts, scores = Ragged(ids, offsets), None
        odd[_owners(offsets, wrong)] = True
        if "scores" in self._keys:
            numbers, places = _scores(given.get("scores"), single)
            odd |= np.diff(places) != np.diff(offsets)
            odd[_owners(places, ~self._concepts.fit(numbers))] = True
            scores = Ragged(numbers, places)
        odd |= np.diff(offsets) * self._concepts.dtype.itemsize > MAX_RECORD_BYTES
        if odd.any():
            lengths, some = np.where(odd, 0, np.diff(offsets)), np.flatnonzero(~odd)
            concepts, offsets = concepts.take(some), offsets_of(lengths)
            scores = None if scores is None else scores.take(some)
        pairs = self._concepts.pairs(concepts.values, None if scores is None else scores.values)
        return Ragged(pairs, offsets), odd


def _types(values: Iterable[Any]) -> set[type]:
    """Of values, or of those in lists, without None."""
    found = set[type]()
    for value in values:
        found.update(map(type, value) if type(value) is list else (type(value),))
    return found - {type(None)}


def _bools(column: Any) -> Bools:
    """Without nulls, which are False."""
    found: Bools = column.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _texts(column: Any, count: int, integers: bool = True) -> Any:
    """As texts, from texts, or integers if these may be some. Raises: ValueError for other types."""
    import pyarrow as pa

    if column is None or pa.types.is_null(column.type):
        return pa.nulls(count, pa.large_string())
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (is_text(kind) or (integers and pa.types.is_integer(kind))):
        raise ValueError
    return column.cast(kind).cast(pa.large_string())


def _integers(column: Any, count: int) -> tuple[Ints, Bools]:
    """(integers, 0 for null; which are none). Raises: ValueError for other types."""
    import pyarrow as pa

    if column is None or pa.types.is_null(column.type):
        return np.zeros(count, np.int64), np.zeros(count, bool)
    if not pa.types.is_integer(column.type):
        raise ValueError
    return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), _bools(column.is_valid())


def _lists(column: Any) -> tuple[Any, Ints]:
    """(values of all lists, offsets of each; null is empty). Raises: ValueError for other types."""
    if not is_list(column.type):
        raise ValueError
    return list_parts(column)


def _owners(offsets: Ints, wrong: Bools) -> Ints:
    """The lists with a value that is wrong."""
    found: Ints = np.searchsorted(offsets, np.flatnonzero(wrong), "right") - 1
    return found


def _concept_ids(values: Any, concepts: Concepts) -> tuple[NDArray[Any], Bools]:
    """(ids, of concepts given by name or by id; which values are no concept)."""
    import pyarrow as pa

    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if is_text(kind):
        coded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        table = np.array([*(concepts.ids.get(name, -1) for name in coded.dictionary.to_pylist()), -1], np.int64)
        found = table[coded.indices.cast(pa.int64()).fill_null(-1).to_numpy()]
    else:
        found, there = _integers(values, len(values))
        found = np.where(there, found, -1)
    wrong = (found < 0) | (found >= concepts.limit)
    return np.where(wrong, 0, found).astype(concepts.id_type), wrong


def _scores(column: Any, single: bool) -> tuple[NDArray[np.float64], Ints]:
    """(scores, NaN for null; offsets of each list). single: a value stands for a list of one."""
    import pyarrow as pa

    if column is None:
        raise ValueError
    values, offsets = (column, np.arange(len(column) + 1)) if single and not is_list(column.type) else _lists(column)
    if not (pa.types.is_integer(values.type) or values.type in (pa.float32(), pa.float64())):
        raise ValueError
    return values.to_numpy(zero_copy_only=False).astype(np.float64), offsets


def _numbers(column: Any, dtype: "np.dtype[Any] | None") -> tuple[Ragged, Bools]:
    """(records of a number each; which are none), for codec numpy. Raises: ValueError for other types, or no dtype."""
    import pyarrow as pa

    kind = column.type
    odd = _bools(column.is_null())
    if dtype is not None and dtype.kind == "f" and kind in (pa.float32(), pa.float64()):
        given = column.fill_null(0).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            cast = given.astype(dtype)
        odd |= np.isinf(cast) > np.isinf(given)
    elif dtype is not None and dtype.kind == "i" and pa.types.is_integer(kind):
        given, _ = _integers(column, len(column))
        cast = given.astype(dtype)
        odd |= cast != given
    else:
        raise ValueError
    return Ragged(cast, np.arange(len(cast) + 1)), odd


def _digests(column: Any) -> Ints:
    """`digest` of each, 0 for null. Raises: ValueError for what is neither texts nor tokens."""
    if not is_list(column.type):
        if not is_text(column.type):
            raise ValueError
        return np.array([0 if text is None else digest(text) for text in column.to_pylist()], np.int64)
    values, offsets = _lists(column)
    tokens, there = _integers(values, len(values))
    if not there.all() or (len(tokens) and not 0 <= tokens.min() <= tokens.max() < 1 << 32):
        raise ValueError
    parts = zip(offsets[:-1].tolist(), offsets[1:].tolist(), _bools(column.is_valid()).tolist(), strict=True)
    return np.array([digest(tokens[a:b]) if valid else 0 for a, b, valid in parts], np.int64)
