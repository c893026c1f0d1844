"""The rows of files of annotations, as tables with a row for each annotation: their spans are parsed as a build's."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import ConfigError, InputError
from conceptloader.format.spec.codecs import get_codec
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.layout import MAX_RECORD_BYTES
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.parquet import is_list, is_text, list_parts
from conceptloader.ingest.records.batch import BadRow, Ragged
from conceptloader.ingest.records.columns import LISTS, OWN_TEXT, Columns
from conceptloader.ingest.records.documents import NO_NAN, each, number
from conceptloader.ingest.records.inputs import Source
from conceptloader.ingest.records.lines import read_blocks
from conceptloader.ingest.records.records import read_record
from conceptloader.ingest.records.table import objects_of, read_row_groups, spans_of, typed
from conceptloader.ingest.records.vocabulary import Concepts

WHOLE = (1 << 32) - 1  # the end of an annotation of a whole document
OnBad = Callable[[str, str, str], None]
_ODD = BadRow, ValueError, TypeError, OverflowError, NotImplementedError  # what pyarrow raises is one of these


class Rows:
    """The annotations of files.

    Columns: document or id (the other one is null), start, stop, source, row (its number in the file), part (of the
    row), record, and own (the text that the span says it has).

    A row names its document by `id` or `document`, and has either `spans`, a list of {start, end, V}, or start, end and
    V itself, or only V, which then belongs to the whole document. V is `concepts`, and `scores` if the track has any;
    for other codecs `value`. Records of concepts are those of `Concepts.pairs`.

    bad: how many rows were skipped. unseen: of the columns that were named, those that no row has had.
    """

    def __init__(self, sources: Sequence[Source], options: AnnotateOptions, on_bad: OnBad | None) -> None:
        track, theirs = options.check(), options.column
        self._sources, self._on_bad = sources, on_bad
        self._codec: Any = get_codec(track.codec, track.parameters, f"track {options.track!r}")
        self._dtype = getattr(self._codec, "dtype", None)  # a number may stand for a record of one
        self._concepts = Concepts(track) if track.codec == "concepts" else None
        keys = {"start", "end", "value"} if self._concepts is None else self._concepts.keys
        self._expected = "start, end and value" if self._concepts is None else self._concepts.expected(())
        self._fields, self._known = {*keys, *OWN_TEXT}, {"id", "document", "spans", *keys, *OWN_TEXT}
        if unknown := sorted(theirs.keys() - {"id", "document", "spans", *keys, OWN_TEXT[0]}):
            known = ", ".join(sorted({*self._known} - {*OWN_TEXT[1:]}))
            raise ConfigError("columns", repr(unknown[0]), f"some of {known}", "correct --column OURS=THEIRS")
        self._theirs, self._ours = theirs, {name: ours for ours, name in theirs.items()}
        self._spans, self._ignored = theirs.get("spans", "spans"), frozenset(options.ignore_column)
        # A text that is ignored is that of the document, unless it says that it is a span's.
        of_spans = {
            name.removeprefix(f"{self._spans}.") for name in self._ignored if name.startswith(f"{self._spans}.")
        }
        self._ignored_fields = of_spans | self._ignored.difference(OWN_TEXT)
        self._alone = LISTS if "concepts" in theirs else ()  # what may stand without a list
        self._missing = options.missing
        self.bad, self.unseen = 0, {*theirs.values()}

    def tables(self) -> Iterator[Any]:
        """In the order of the files and their rows. Raises: InputError naming file and row."""
        import pyarrow as pa

        for k, source in enumerate(self._sources):
            for numbers, rows, bad in self._blocks(source):
                found = [*self._parsed(np.array(numbers, np.int64), rows, bad)]
                for row, problem in sorted(bad):
                    where = source.row_name(row)
                    if self._on_bad is None:
                        raise InputError.saying(where, problem)
                    self._on_bad(source.path, where.removeprefix(f"{source.path}: "), problem)
                    self.bad += 1
                if found[1:]:
                    found = [pa.concat_tables(found).sort_by([("row", "ascending"), ("part", "ascending")])]
                for table in found:
                    yield table.append_column("source", [np.full(len(table), k, np.uint32)])
            source.check_unchanged()

    def _blocks(self, source: Source) -> Iterator[tuple[Sequence[int], Any, list[tuple[int, str]]]]:
        """(numbers of some rows; these, a record batch or a list of objects; what is wrong with others of them)."""
        if source.row_groups is not None:
            values = [self._theirs.get("value", "value"), self._spans] if self._concepts is None else []
            groups = len(source.row_groups)
            for table, first, _ in read_row_groups(source.path, 0, groups, None, self._ignored, values):
                yield range(first, first + table.num_rows), table, []
            return
        for numbers, lines, _ in read_blocks(source.path, source.compression):
            kept, rows, bad = list[int](), list[dict[str, Any]](), list[tuple[int, str]]()
            for row, line in zip(numbers, lines, strict=True):
                if bad and self._on_bad is None:
                    break
                try:
                    rows.append(read_record(line))
                    kept.append(row)
                except ValueError as error:
                    bad.append((row, str(error)))
            yield kept, rows, bad

    def _parsed(self, numbers: Ints, rows: Any, bad: list[tuple[int, str]]) -> Iterator[Any]:
        """What some rows annotate, those of halves where one is wrong, until it is alone."""
        try:
            found = self._parse(numbers, rows) if len(numbers) else []
        except _ODD as error:
            half, before = len(numbers) // 2, len(bad)
            if not half:
                bad.append((int(numbers[0]), error.problem if isinstance(error, BadRow) else str(error)))
                return
            yield from self._parsed(numbers[:half], rows[:half], bad)
            if len(bad) == before or self._on_bad is not None:
                yield from self._parsed(numbers[half:], rows[half:], bad)
        else:
            yield from found

    def _parse(self, numbers: Ints, rows: Any) -> list[Any]:
        """Raises: one of _ODD."""
        if isinstance(rows, list):
            listed = np.array([row.get(self._spans) is not None for row in rows], bool)
        else:
            rows.validate(full=True)  # texts are UTF-8
            listed = (
                _valid(rows.column(self._spans)) if self._spans in rows.schema.names else np.zeros(len(numbers), bool)
            )
        if listed.all() or not listed.any():
            return [self._table(numbers, rows, bool(listed[0]))]
        found = []
        for kind in (True, False):
            some = np.flatnonzero(listed == kind)
            part = [rows[i] for i in some.tolist()] if isinstance(rows, list) else rows.take(some)
            found.append(self._table(numbers[some], part, kind))
        return found

    def _table(self, numbers: Ints, rows: Any, listed: bool) -> Any:
        """What rows with `spans`, or without, annotate. Raises: one of _ODD."""
        import pyarrow as pa
        import pyarrow.compute as pc

        fields, count = self._columns(rows, self._ignored), len(numbers)
        ids, document = _texts(fields.get("id"), count), _integers(fields.get("document"), count)
        named = _true(pc.not_equal(ids, ""))
        both = named == _valid(document)
        if both.any():
            i = int(np.argmax(both))
            found = f"id {ids[i].as_py()!r:.100} and document {document[i].as_py()!r:.100}"
            raise ValueError(f"found {found}, expected one of the two")
        if _true(pc.match_substring(ids, "\0")).any():
            raise ValueError("id: found a NUL in a text, expected none")
        if (low := pc.min(document).as_py()) is not None and low < 0:
            raise ValueError(f"document: found {low}, expected the number of a document, from 0")
        row, part = np.arange(count), np.zeros(count, np.int64)
        if listed:
            if beside := sorted(name for name in self._fields & fields.keys() if _valid(fields[name]).any()):
                raise ValueError(f"found spans together with {beside[0]}, expected one of the two")
            objects, offsets = _objects(fields["spans"])
            row = np.repeat(row, np.diff(offsets))
            part = np.arange(len(row)) - offsets[row]
            fields = self._columns(objects, self._ignored_fields) if len(objects) else {}
            if odd := sorted(fields.keys() - self._fields):
                raise ValueError(f"spans: found {odd[0]!r}, expected {self._expected}; omit it (--ignore-column)")
        start, stop, own = _places(fields, len(row), listed)
        if self._concepts is not None:
            records = self._concept_records(self._concepts, fields, start, stop)
        else:
            some, records = self._values(fields.get("value"), stop)
            start, stop, row, part, own = start[some], stop[some], row[some], part[some], own.take(some)
        if len(row) and int(np.diff(records.offsets).max()) * records.values.itemsize > MAX_RECORD_BYTES:
            raise ValueError(f"found a record above {MAX_RECORD_BYTES} bytes, expected smaller ones")
        values, offsets = np.ascontiguousarray(records.values), records.offsets * records.values.itemsize
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
        columns = {
            "document": document.take(row), "id": ids.take(row),
            "start": start.astype(np.uint32), "stop": stop.astype(np.uint32), "row": numbers[row],
            "part": part, "record": pa.Array.from_buffers(pa.large_binary(), len(row), buffers), "own": own,
        }  # fmt: skip
        return pa.table(columns)

    def _columns(self, objects: Any, ignored: Collection[str]) -> dict[str, Any]:
        """By our names the values of objects, of a record batch, or of an array of structs: arrays of Arrow, and lists.

        Raises: ValueError.
        """
        arrays: Sequence[Any] = ()
        if isinstance(objects, list):
            names = [*dict.fromkeys(chain.from_iterable(objects))]
        elif hasattr(objects, "schema"):
            names, arrays = objects.schema.names, objects.columns
        else:
            names, arrays = [field.name for field in objects.type], objects.flatten()
        found: dict[str, Any] = {}
        for k, name in enumerate(names):
            if name in ignored:
                continue
            ours = self._ours.get(name, name)
            if ours == name != self._theirs.get(name, name):
                raise ValueError(
                    f"found column {name!r}, expected {self._theirs[name]!r} alone, which stands for it; omit it "
                    "(--ignore-column)"
                )
            if ours not in self._known or ours in found:
                raise ValueError(
                    f"found column {name!r}, expected some of id, document, spans, {self._expected}; omit it "
                    "(--ignore-column)"
                )
            self.unseen.discard(name)
            if arrays:
                found[ours] = arrays[k]
                continue
            try:
                values = [*map(itemgetter(name), objects)]
            except KeyError:
                if ours == "value" and self._dtype is None:
                    continue  # `_values` says it
                values = [one.get(name) for one in objects]
            if ours == "id":
                values = [str(value) if type(value) is int else value for value in values]
            if ours in self._alone:
                values = [value if value is None or type(value) is list else [value] for value in values]
            found[ours] = values if ours in ("value", "spans") else typed(values, name)
        return found

    def _concept_records(self, concepts: Concepts, fields: Mapping[str, Any], start: Ints, stop: Ints) -> Ragged:
        import pyarrow as pa

        if not len(start):
            return Ragged(concepts.pairs([], []), offsets_of([]))
        if "concepts" not in fields:
            raise ValueError(f"found no 'concepts', expected {self._expected} for each annotation")
        parts = {"start": pa.array(start), "end": pa.array(stop), "concepts": fields["concepts"]}
        if "scores" in concepts.keys:
            none = pa.nulls(len(start), pa.list_(pa.float64()))  # which is no type that rows would be of
            parts["scores"] = fields["scores"] if "scores" in fields and _valid(fields["scores"]).any() else none
        spans = pa.LargeListArray.from_arrays(
            np.arange(len(start) + 1), pa.StructArray.from_arrays([*parts.values()], [*parts])
        )
        alone = Columns(span_fields={name: name for name in self._alone})
        return spans_of(spans, "spans", concepts, alone).concepts

    def _values(self, values: Any, stop: Ints) -> tuple[Ints, Ragged]:
        """(which annotations have a value, their records): a whole document may have none of codec numpy."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if values is None and len(stop) and self._dtype is None:
            raise ValueError("found no 'value', expected one for each annotation")
        if values is None:
            values = [None] * len(stop)
        if (
            isinstance(values, list)
            and {*map(type, values)} - {type(None)} in ({int}, {float})
            and self._dtype is not None
        ):
            values = typed(values, "value")
        if self._missing is not None and not isinstance(values, list) and pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        if (
            not isinstance(values, list)
            and self._dtype is not None
            and (found := _cast(values, self._dtype)) is not None
        ):
            none = ~_valid(values)
            if self._missing not in (None, "none"):
                found[none], none = self._dtype.type(self._missing), np.zeros_like(none)
            some = np.flatnonzero(~none)
            self._check_none(stop, some)
            return some, Ragged(found[some], np.arange(len(some) + 1))
        encoded: list[bytes | None] = []
        each(
            values if isinstance(values, list) else objects_of(values, "value"),
            lambda value: encoded.append(self._encoded(value)),
        )
        some = np.array([i for i, one in enumerate(encoded) if one is not None], np.int64)
        self._check_none(stop, some)
        kept = [one for one in encoded if one is not None]
        return some, Ragged(np.frombuffer(b"".join(kept), np.uint8), offsets_of([len(one) for one in kept]))

    def _check_none(self, stop: Ints, some: Ints) -> None:
        if (np.delete(stop, some) != WHOLE).any():
            raise ValueError("value: found none, expected one for each span")

    def _encoded(self, value: Any) -> Any:
        if self._dtype is None or isinstance(value, list):
            return self._codec.encode(value)
        return number(value, "value", self._codec, self._missing)


def _valid(values: Any) -> NDArray[np.bool_]:
    if isinstance(values, list):
        return np.array([value is not None for value in values], bool)
    found: NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return found


def _true(values: Any) -> NDArray[np.bool_]:
    """Without nulls, which are False."""
    found: NDArray[np.bool_] = values.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _texts(column: Any, count: int) -> Any:
    """As texts, from texts or integers. Raises: ValueError for other types."""
    import pyarrow as pa

    if column is None or column.null_count == count:
        return pa.nulls(count, pa.large_string())
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (is_text(kind) or pa.types.is_integer(kind)):
        raise ValueError(f"found {kind}, expected texts or integers")
    return column.cast(kind).cast(pa.large_string())


def _integers(column: Any, count: int) -> Any:
    """As int64. Raises: ValueError for other types."""
    import pyarrow as pa

    if column is None or column.null_count == count:
        return pa.nulls(count, pa.int64())
    if not pa.types.is_integer(column.type):
        raise ValueError(f"found {column.drop_null()[0].as_py()!r:.100}, expected integers")
    return column.cast(pa.int64())


def _objects(spans: Any) -> tuple[Any, Ints]:
    """(spans of all rows, a list of objects or an array of structs; offsets of each row's). Raises: ValueError."""
    import pyarrow as pa

    if isinstance(spans, list):
        objects = [*chain.from_iterable(spans)] if {*map(type, spans)} == {list} else [None]
        if not {*map(type, objects)} <= {dict}:
            raise ValueError(f"spans: found {spans[0]!r:.100}, expected a list of objects")
        return objects, offsets_of([len(some) for some in spans])
    if not is_list(spans.type):
        raise ValueError(f"spans: found {spans.type}, expected lists of structs")
    structs, offsets = list_parts(spans)
    if len(structs) and (structs.null_count or not pa.types.is_struct(structs.type)):
        raise ValueError(f"spans: found {spans.type} with {structs.null_count} nulls, expected lists of structs")
    return structs, offsets


def _places(fields: Mapping[str, Any], count: int, listed: bool) -> tuple[Ints, Ints, Any]:
    """(start, stop, own text) of spans; without offsets a row is of a whole document. Raises: ValueError."""
    import pyarrow as pa

    start, end = (_integers(fields.get(name), count) for name in ("start", "end"))
    own = [name for name in OWN_TEXT if name in fields and _valid(fields[name]).any()]
    if own[1:]:
        raise ValueError(f"found {' and '.join(own)}, expected one text of the span; omit one (--ignore-column)")
    texts = fields[own[0]] if own else pa.nulls(count, pa.large_string())
    if own and not is_text(texts.type):
        raise ValueError(f"{own[0]}: found {texts[0].as_py()!r:.100}, expected a string")
    first, stop = (one.fill_null(-1).to_numpy(zero_copy_only=False) for one in (start, end))
    whole = ~(_valid(start) | _valid(end) | _valid(texts) | listed)
    wrong = ~(whole | ((first >= 0) & (first <= stop) & (stop < WHOLE)))
    if wrong.any():
        i = int(np.argmax(wrong))
        found = f"found [{start[i].as_py()}, {end[i].as_py()})"
        raise ValueError(f"{found}, expected integers 0 <= start <= end; skip such rows: --bad-records FILE")
    return np.where(whole, 0, first), np.where(whole, WHOLE, stop), texts.cast(pa.large_string())


def _cast(column: Any, dtype: "np.dtype[Any]") -> NDArray[Any] | None:
    """Numbers as records of them; None for values to be looked at singly. Raises: BadRow."""
    import pyarrow as pa

    whole = pa.types.is_integer(column.type)
    if not whole and not pa.types.is_floating(column.type):
        return None
    given = column.fill_null(0).to_numpy(zero_copy_only=False)
    if dtype.kind == "f" and whole and len(given) and (given.max() > 1 << 53 or given.min() < -1 << 53):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        cast = given.astype(dtype)
        lost = (cast.astype(given.dtype) != given) | ((cast < 0) != (given < 0)) if whole else ~np.isfinite(cast)
    lost |= not whole and dtype.kind != "f"
    if lost.any():
        i = int(np.argmax(lost))
        wanted = NO_NAN if np.isnan(given[i]) else f"expected a finite number that {dtype} holds"
        raise BadRow(i, f"value: found {given[i]}, {wanted}")
    return np.asarray(cast)
