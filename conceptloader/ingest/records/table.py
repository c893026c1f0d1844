"""Rows of a build's input to batches, column by column: of Parquet files, or objects of JSON."""

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, repeat
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import InputError
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.ingest.parquet import is_list, is_text, list_parts, open_parquet
from conceptloader.ingest.records.batch import BadRow, Ragged, RawSpans, RowBatch
from conceptloader.ingest.records.columns import Columns, own_text
from conceptloader.ingest.records.documents import Documents, check_own, each
from conceptloader.ingest.records.features import check_features
from conceptloader.ingest.records.vocabulary import Concepts

_BATCH_BYTES = 2 << 20  # so that what is done to a batch stays in the cache
_SPAN_TYPE = "a list of structs {start: integer, end: integer, concepts: list of strings or integers}"
_OTHER = "write it with this type, or name another column: --column OURS=THEIRS"


def column_types(path: str) -> dict[str, Any]:
    """Pyarrow's types of the columns, by name."""
    with open_parquet(path) as file:
        return {column.name: column.type for column in file.schema_arrow}


def read_objects(path: str, column: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of the row from 0, row as Python objects); column: the only one that is wanted, if it is there."""
    row = 0
    with open_parquet(path) as file:
        wanted = None if column is None else [name for name in file.schema_arrow.names if name == column]
        try:
            for table in file.iter_batches(batch_size=1 << 10, columns=wanted, use_threads=False):
                yield from enumerate(table.to_pylist(), row)
                row += table.num_rows
        except (OSError, ValueError, OverflowError) as error:  # pyarrow's exceptions are of these kinds
            fix = f"copy {path} again, or write it again with pyarrow"
            raise InputError(path, f"from row {row} on: cannot be read ({error})", fix=fix) from error


def rows_at(table: Any, rows: Sequence[int]) -> Any:
    """A record batch of these rows of another one."""
    import pyarrow as pa

    ends = np.flatnonzero(np.diff(rows, prepend=-2, append=-2) != 1)  # of slices, since not every type can be taken
    places = [(rows[i], int(k - i)) for i, k in pairwise(ends.tolist())]
    return pa.concat_batches([table.slice(0, 0), *(table.slice(first, count) for first, count in places)])


def read_row_groups(
    path: str,
    begin: int,
    end: int,
    columns: Columns | None,
    ignored: Collection[str] = (),
    numbers: Collection[str] = (),
) -> Iterator[tuple[Any, int, float]]:
    """Pyarrow record batches of row groups [begin, end), of the wanted columns only (None: all but those `ignored`).

    numbers: columns whose labels may be numbers, where `columns` is None.

    With each: the number (from 0, in the file) of its first row, and the share of rows that has been read after it.

    Raises: InputError for wrong columns or a corrupt file.
    """
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        problem = columns.problem(names) if columns is not None else None
        if problem:
            raise InputError.saying(path, problem)
        asked = columns.wanted() if columns is not None else [name for name in names if name not in ignored]
        wanted = [name for name in asked if name in names]
        if columns is not None:
            numbers, ignored = [columns.tokens or "", *columns.fields, *columns.numbers], columns.ignored
        check_features(path, file.schema_arrow, [name for name in wanted if name not in numbers], ignored)
        counts = [file.metadata.row_group(i).num_rows for i in range(end)]
        first = row = sum(counts[:begin])
        for group in range(begin, end):
            meta = file.metadata.row_group(group)
            rows = max(1, min(1 << 16, _BATCH_BYTES * meta.num_rows // max(1, meta.total_byte_size)))
            try:
                for table in file.iter_batches(batch_size=rows, row_groups=[group], columns=wanted, use_threads=False):
                    yield table, row, (row + table.num_rows - first) / sum(counts[begin:])
                    row += table.num_rows
            except (OSError, ValueError) as error:  # pyarrow's exceptions are of these kinds
                raise InputError(
                    f"{path}: row group {group}, from row {row} on",
                    f"what pyarrow cannot read ({error})",
                    "whole rows",
                    f"copy {path} again, or write it again with pyarrow",
                ) from error


class TableParser:
    """Turns rows into batches for given columns and vocabularies (by track)."""

    def __init__(self, columns: Columns, concepts: Mapping[str, Concepts]) -> None:
        self._columns, self._concepts = columns, concepts
        self._known = frozenset([*columns.wanted(), *columns.ignored])

    def parse(self, table: Any) -> RowBatch:
        """Those of a record batch. Raises: BadRow."""
        columns = self._columns
        given = dict(zip(table.schema.names, table.columns, strict=True))
        objects = {name: objects_of(given[name], name) for name in columns.objects() if name in given}
        rows = zip(*objects.values(), strict=True) if objects else repeat((), table.num_rows)
        return self._parse((dict(zip(objects, row, strict=True)) for row in rows), given)

    def parse_records(self, rows: Iterable[Any], read: Callable[[Any], dict[str, Any]] = dict) -> RowBatch:
        """Those of objects of JSON, which `read` makes of the rows or raises ValueError.

        Raises: BadRow, with -1 also for rows that are right alone, but have lists of several types.
        """
        columns, records, collects = self._columns, list[dict[str, Any]](), gc.isenabled()

        def add(row: Any) -> None:
            records.append(record := read(row))
            if not (self._known >= record.keys() and columns.content in record):
                raise ValueError(columns.problem(record.keys()))

        gc.disable()  # objects of JSON hold no cycles: looking for some takes as long as parsing does
        try:
            each(rows, add)
            arrays = [name for name in (columns.tokens, *columns.tracks.values(), *columns.fields) if name is not None]
            given = {name: typed([one.get(name) for one in records], name, columns.fields.get(name)) for name in arrays}
        finally:
            if collects:
                gc.enable()
        return self._parse(records, given)

    def _parse(self, objects: Iterable[Mapping[str, Any]], given: Mapping[str, Any]) -> RowBatch:
        """given: the columns that hold lists."""
        columns, documents = self._columns, Documents(self._columns)
        each(objects, documents.add)
        tokens = None
        if columns.tokens is not None:
            column = given[columns.tokens]
            if column.null_count:
                row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                raise BadRow(row, f"{columns.tokens}: found null, expected a list; skip such rows: --bad-records FILE")
            values, offsets = _lists(column, columns.tokens, "a list of integers")
            tokens = Ragged(_numbers(values, columns.tokens, offsets), offsets)
        spans = {
            track: spans_of(given.get(column), column, self._concepts[track], columns)
            for track, column in columns.tracks.items()
        }
        fields = {}
        for name, code in columns.fields.items():
            if name not in given:
                raise BadRow(
                    -1, f"found no column {name!r}, expected one value per token in it; correct --column OURS=THEIRS"
                )
            fields[name] = _aligned(given[name], name, tokens, np.dtype("<" + code))
        return documents.batch(tokens, spans, fields)


def typed(values: Sequence[Any], name: str, code: str | None = None) -> Any:
    """Values of JSON as an array of Arrow, exactly. A key that an object lacks is null.

    code: the type that numbers are to be stored in, if that is known.

    Raises: BadRow, with row -1, for values of several types, of which Arrow would change some, and what it cannot hold,
    or that type; of integers alone whoever stores them says that.
    """
    import pyarrow as pa

    types, known, nulls = {*map(type, values)}, values, None
    if type(None) in types:
        known, nulls = [one for one in values if one is not None], pa.array([one is None for one in values])
        types.remove(type(None))
    if types and types <= {list, np.ndarray}:
        offsets = offsets_of(
            [*map(len, values)] if nulls is None else [0 if one is None else len(one) for one in values]
        )
        if types == {np.ndarray}:
            items = pa.array(np.concatenate(known))
        else:
            lists = known if len(types) == 1 else [one if type(one) is list else one.tolist() for one in known]
            items = typed([*chain.from_iterable(lists)], name, code)
        return pa.LargeListArray.from_arrays(pa.array(offsets), items, mask=nulls)
    if types == {dict}:
        parts = {}
        for key in dict.fromkeys(chain.from_iterable(known)):
            try:
                part = [*map(itemgetter(key), values)]
            except (KeyError, TypeError):
                part = [None if one is None else one.get(key) for one in values]
            parts[key] = typed(part, f"{name}.{key}")
        struct = pa.StructArray.from_arrays([*parts.values()], [*parts], mask=nulls)
        return struct if parts else pa.array(values, pa.struct([]))
    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_(), type(None): pa.null()}
    kind = kinds.get(float if types == {int, float} else type(known[0]) if known else type(None))
    if types == {int} and max(known) >= 1 << 63 and min(known) >= 0:
        kind = pa.uint64()
    if len(types - {int} if kind == pa.float64() else types) > 1:
        other = next(one for one in known if type(one) is not type(known[0]))
        raise BadRow(-1, f"{name}: found {known[0]!r:.100} and {other!r:.100}, expected values of one type")
    try:
        found = pa.array(values, kind)
    except (ValueError, OverflowError) as error:
        raise BadRow(-1, f"{name}: found what {kind} cannot hold ({error}), expected what it can") from error
    if code is not None and types == {int, float}:  # which are floats from here on, and may round
        given = np.array([one for one in known if type(one) is int])
        with np.errstate(over="ignore"):
            lost = given[given.astype(code) != given]
        if len(lost):
            problem = f"{name}: found {lost[0]}, expected a number that {np.dtype(code)} holds; use another type"
            raise BadRow(-1, problem)
    return found


def objects_of(column: Any, name: str) -> list[Any]:
    """The values of a column, without a name of records. Raises: BadRow for what Python cannot read or would cut."""
    where = f"column {name!r}: " if name else ""
    if "time64[ns]" in str(column.type):
        expected = "whole microseconds, as nanoseconds would be lost; cast it to time64[us] or text, or omit it"
        raise BadRow(-1, f"{where}found {column.type}, expected {expected} (--ignore-column)")
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (ValueError, OverflowError):
        for row in range(len(column)):
            try:
                column[row].as_py()
            except UnicodeDecodeError as error:
                raise BadRow(
                    row,
                    f"{where}found bytes that are not UTF-8 ({error}), expected UTF-8; "
                    "convert the text, or skip it: --bad-records FILE",
                ) from error
            except (ValueError, OverflowError) as error:  # as for times that Python does not have
                fix = f"cast {name or 'it'} to text, or skip such rows: --bad-records FILE"
                found = f"{where}found what cannot be read ({error})"
                raise BadRow(row, f"{found}, expected a value that Python can hold; {fix}") from error
        raise


def _lists(column: Any, name: str, expected: str) -> tuple[Any, Ints]:
    """(values of all lists, offsets of each list)."""
    if str(column.type) == "null":  # of JSON, where no row has a list
        return column.slice(0, 0), np.zeros(len(column) + 1, np.int64)
    if not is_list(column.type):
        raise BadRow(-1, f"column {name!r}: found type {column.type}, expected {expected}; {_OTHER}")
    return list_parts(column)


def _row_of(offsets: Ints, item: int) -> int:
    return int(np.searchsorted(offsets, item, "right")) - 1


def _no_nulls(values: Any, name: str, offsets: Ints) -> None:
    if values.null_count:
        item = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise BadRow(
            _row_of(offsets, item),
            f"column {name!r}: found null, expected a value; fill {name!r}, or skip such rows: --bad-records FILE",
        )


def _numbers(values: Any, name: str, offsets: Ints, kinds: str = "iu") -> NDArray[Any]:
    """An arrow column of numbers as an array, not copied. Raises: BadRow for nulls and other types."""
    _no_nulls(values, name, offsets)
    if len(values) == 0:
        return np.empty(0, np.int64)
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in kinds:
        expected = "integers" if kinds == "iu" else "numbers"
        raise BadRow(-1, f"column {name!r}: found type {values.type}, expected {expected}; {_OTHER}")
    return array


def _aligned(column: Any, name: str, tokens: Ragged | None, dtype: "np.dtype[Any]") -> NDArray[Any]:
    values, offsets = _lists(column, name, "a list of numbers")
    if tokens is not None and not np.array_equal(offsets, tokens.offsets):
        found, wanted = np.diff(offsets), np.diff(tokens.offsets)
        row = int(np.argmax(found != wanted))
        raise BadRow(
            row,
            f"{name}: found {found[row]} values, expected {wanted[row]}, one per token; "
            f"correct {name}, or skip such rows: --bad-records FILE",
        )
    numbers = _numbers(values, name, offsets, "iufb")
    with np.errstate(all="ignore"):
        stored = numbers.astype(dtype)
    wrong = stored != numbers if dtype.kind in "iu" else np.isinf(stored) & ~np.isinf(numbers)
    if dtype.kind == "f" and numbers.dtype.kind in "iu":  # float16 has no 2049
        wrong = stored.astype(numbers.dtype) != numbers
    if wrong.any():
        i = int(np.argmax(wrong))
        problem = f"{name}: found {numbers[i]}, expected a number that {dtype} holds; use another type"
        raise BadRow(_row_of(offsets, i), problem)
    return stored


def spans_of(column: Any, name: str, concepts: Concepts, columns: Columns) -> RawSpans:
    """Those of a column of lists; None: of no column. columns: say what fields are called. Raises: BadRow."""
    import pyarrow as pa

    structs, rows = _lists(pa.nulls(0) if column is None else column, name, _SPAN_TYPE)
    if not len(structs):
        empty = np.empty(0, np.int64)
        return RawSpans(empty, empty, empty, Ragged(concepts.pairs([], []), offsets_of([])))
    names = [columns.field_of(name, f.name) for f in structs.type] if pa.types.is_struct(structs.type) else []
    keys = {ours for ours in names if ours is not None}
    text = own_text(keys, concepts.keys)
    if keys - {text} != concepts.keys:
        expected = f"a list of structs with {concepts.expected(keys)}" if keys else _SPAN_TYPE
        raise BadRow(-1, f"column {name!r}: found type {column.type}, expected {expected}; {_OTHER}")
    if len(names) - names.count(None) > len(keys):
        raise BadRow(
            -1,
            f"column {name!r}: found type {column.type}, expected each name once; rename one of the fields of {name!r}",
        )
    _no_nulls(structs, name, rows)
    parts = dict(zip(names, structs.flatten(), strict=True))
    start, end = (_numbers(parts[key], f"{name}.{key}", rows).astype(np.int64) for key in ("start", "end"))
    _no_nulls(parts["concepts"], f"{name}.concepts", rows)
    single = {"concepts", "scores"} & columns.span_fields.keys()
    values, offsets = _listed(parts["concepts"], f"{name}.concepts", _SPAN_TYPE, "concepts" in single)
    row = np.repeat(np.arange(len(column)), np.diff(rows))
    ids = _concept_ids(values, name, concepts, offsets[rows])
    scores = None
    if "scores" in keys:
        found = _listed(parts["scores"], f"{name}.scores", "a list of numbers", "scores" in single)
        scores = _scores(*found, f"{name}.scores", concepts, offsets, rows)
    if (start > end).any():
        i = int(np.argmax(start > end))
        raise BadRow(
            int(row[i]),
            f"{name}: found [{start[i]}, {end[i]}), expected start <= end; "
            "correct the span, or skip such rows: --bad-records FILE",
        )
    own = None if text is None else objects_of(parts[text], f"{name}.{text}")
    for i, value in enumerate(own or ()):
        try:
            check_own(value, f"{name}.{text}")
        except ValueError as error:
            raise BadRow(int(row[i]), str(error)) from error
    return RawSpans(row, start, end, Ragged(concepts.pairs(ids, scores), offsets), own=own)


def _listed(column: Any, name: str, expected: str, single: bool) -> tuple[Any, Ints]:
    """(values of all lists, offsets of each list). single: a value may stand for a list of one."""
    import pyarrow as pa

    if single and not pa.types.is_nested(column.type):
        return column, np.arange(len(column) + 1)
    return _lists(column, name, expected)


def _scores(values: Any, found: Ints, name: str, concepts: Concepts, offsets: Ints, rows: Ints) -> NDArray[Any]:
    """Scores in lists with the offsets `found`, of concepts with these offsets, in spans with the offsets `rows`."""
    if not np.array_equal(found, offsets):
        span = int(np.argmax(np.diff(found) != np.diff(offsets)))
        counts = np.diff(found)[span], np.diff(offsets)[span]
        raise BadRow(
            _row_of(rows, span),
            f"{name}: found {counts[0]} for {counts[1]} concepts, expected a score for each; correct the record",
        )
    numbers = _numbers(values, name, offsets[rows], "iuf")
    if not concepts.fit(numbers).all():
        i = int(np.argmin(concepts.fit(numbers)))
        problem = f"{name}: found {numbers[i]}, expected {concepts.expected_score}"
        raise BadRow(_row_of(offsets[rows], i), problem)
    return numbers


def _concept_ids(values: Any, name: str, concepts: Concepts, rows: Ints) -> NDArray[Any]:
    """Ids of concepts given by name or by id; each distinct one is looked up once."""
    import pyarrow as pa

    _no_nulls(values, f"{name}.concepts", rows)
    if not len(values):
        return np.empty(0, np.uint32)
    if not (is_text(values.type) or pa.types.is_integer(values.type) or pa.types.is_dictionary(values.type)):
        raise BadRow(-1, f"column {name!r}: found concepts of type {values.type}, expected {_SPAN_TYPE}; {_OTHER}")
    if pa.types.is_integer(values.type):
        given: NDArray[Any] = values.to_numpy(zero_copy_only=False)
        if not ((given < 0) | (given >= concepts.limit)).any():
            return given.astype(np.uint32)
    coded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    table = []
    for i, value in enumerate(objects_of(coded.dictionary, f"{name}.concepts")):
        try:
            table.append(concepts.id(value))
        except ValueError as error:
            item = int(np.argmax(coded.indices.to_numpy() == i))
            raise BadRow(_row_of(rows, item), f"{name}: {error}") from error
    indices: NDArray[np.int64] = coded.indices.to_numpy()
    return np.array(table, np.uint32)[indices]
