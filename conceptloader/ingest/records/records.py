"""Records, such as lines of JSON, to batches. What can be wrong with one is found here or in `place`."""

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.spec.columns import as_field, offsets_of
from conceptloader.format.spec.jsonfile import each_once
from conceptloader.ingest.records.batch import Ragged, RawSpans, RowBatch
from conceptloader.ingest.records.columns import LISTS, Columns, own_text
from conceptloader.ingest.records.documents import Documents, check_own, each
from conceptloader.ingest.records.lines import CsvRow
from conceptloader.ingest.records.tokenized import as_trained
from conceptloader.ingest.records.vocabulary import Concepts
from conceptloader.kernels.digits import parse_digits

_FAR = 1 << 62  # more than any text has characters


def read_record(row: bytes | CsvRow) -> dict[str, Any]:
    """The record that a line of JSON or a row of CSV is. Raises: ValueError that says what is wrong with it."""
    return parse_json(row) if isinstance(row, bytes) else row.read()


class RecordParser:
    """Turns rows of the input into batches for given columns and vocabularies (by track).

    read: what makes a record of a row, and raises ValueError for one that is none; by default `read_record`.
    """

    def __init__(
        self,
        columns: Columns,
        concepts: Mapping[str, Concepts],
        read: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        if read is None and columns.tokens is not None and columns.tokens.isascii():
            read = partial(_read_tokens, columns.tokens, json.dumps(columns.tokens).encode("ascii"))
        self._columns, self._concepts, self._read = columns, concepts, read or read_record
        self._known = frozenset([*columns.wanted(), *columns.ignored])
        self._renamed = {column for column in columns.tracks.values() if columns.renames(column)}

    def parse(self, rows: Sequence[Any]) -> RowBatch:
        """The documents of `rows`. Raises: BadRow, row = index into `rows`."""
        columns = self._columns
        documents = Documents(columns)
        tokens: list[Any] = []
        spans = {track: SpanCollector(self._concepts[track]) for track in columns.tracks}
        fields = {name: [np.empty(0, "<" + code)] for name, code in columns.aligned.items()}

        def add(row: Any) -> None:
            record = self._read(row)
            if not (self._known >= record.keys() and columns.content in record):
                raise ValueError(columns.problem(record.keys()))
            documents.add(record)
            if columns.tokens is not None:
                tokens.append(integers(record[columns.tokens], columns.tokens))
                for name, values in fields.items():
                    values.append(_aligned(record.get(name), len(tokens[-1]), name, columns.aligned[name]))
            for track, column in columns.tracks.items():
                if record.get(column) is not None:
                    found = record[column]
                    if column in self._renamed and isinstance(found, list):
                        found = [_renamed(span, column, columns) for span in found]
                    spans[track].add(len(documents.ids) - 1, found, column)

        each(rows, add)
        batch = documents.batch(
            ragged(tokens) if columns.tokens is not None else None,
            {track: collector.finish() for track, collector in spans.items()},
            {name: np.concatenate(values) for name, values in fields.items()},
        )
        return as_trained(batch, columns)


def _renamed(span: Any, column: str, columns: Columns) -> Any:
    """A span with the names that its fields have here. Raises: ValueError if two have one name."""
    if type(span) is not dict:
        return span
    found: dict[str, Any] = {}
    for theirs, value in span.items():
        ours = columns.field_of(column, theirs)
        if ours in found:
            raise ValueError(f"{column}: found {span!r:.100}, expected one field that is {ours!r}")
        if ours is not None:
            single = ours in LISTS and ours in columns.span_fields and type(value) is not list
            found[ours] = [value] if single else value
    return found


def _read_tokens(column: str, key: bytes, row: bytes | CsvRow) -> dict[str, Any]:
    """`read_record` with token ids as an array where the fast way works: 1.5 times less CPU time for a whole build."""
    cut = cut_list(row, key) if isinstance(row, bytes) else None
    if cut is not None:
        record = parse_json(cut[0])
        if type(record.get(column)) is int:  # else the list was another one of this name
            return {**record, column: cut[1]}
    return read_record(row)


def parse_json(line: bytes) -> dict[str, Any]:
    """One JSON object. Raises: ValueError for anything else, NaN, infinities, 1e400 and a key twice included."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"found byte 0x{line[error.start]:02x} at byte {error.start} of the line, which is not UTF-8, expected "
            "UTF-8; convert the file"
        ) from error
    try:
        text = text.strip(" \t\r\n")
        record, end = _decode(text)
        if end < len(text):
            raise json.JSONDecodeError("Extra data", text, end)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"found broken JSON ({error.msg} at character {error.pos}), expected one object per line; correct the line"
        ) from error
    except RecursionError as error:
        raise ValueError(
            "found JSON nested too deeply, expected one object with the content of a document; correct the line"
        ) from error
    if not isinstance(record, dict):
        raise ValueError(f"found a JSON {type(record).__name__}, expected one object per line; correct the line")
    return record


def parse_value(text: str) -> Any:
    """Any value of JSON. Raises: ValueError, as `parse_json` does."""
    try:
        return JSON.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(name: str) -> Any:
    raise ValueError(f"found {name}, expected JSON, which has no such number; write null or omit it")


def _finite(digits: str) -> float:
    value = float(digits)
    if value - value:
        raise ValueError(f"found {digits:.100}, expected a number of 64 bits; write it as text or omit it")
    return value


JSON = json.JSONDecoder(object_pairs_hook=each_once, parse_constant=_refuse, parse_float=_finite)
_decode = JSON.raw_decode  # not decode, which takes longer to look for white space at both ends


def integers(values: Any, column: str) -> "np.ndarray[Any, Any]":
    """A list of integers as an array."""
    if isinstance(values, np.ndarray):
        return values
    if not isinstance(values, list):
        raise ValueError(f"{column}: found {values!r:.100}, expected a list of integers")
    if not values:
        return np.empty(0, np.int64)
    if set(map(type, values)) != {int}:
        wrong = next(i for i, value in enumerate(values) if type(value) is not int)
        raise ValueError(f"{column}: found {values[wrong]!r:.100} at position {wrong}, expected integers")
    try:
        return np.array(values, np.int64)
    except OverflowError as error:
        raise ValueError(f"{column}: found an integer above 64 bits, expected token ids") from error


def _aligned(values: Any, length: int, column: str, code: str) -> "np.ndarray[Any, Any]":
    kinds = {*map(type, values)} if isinstance(values, list) else {None}
    if not kinds <= {int, float, bool}:
        raise ValueError(f"{column}: found {values!r:.100}, expected a list of numbers, one per token")
    if len(values) != length:
        raise ValueError(f"{column}: found {len(values)} values, expected {length}, one per token")
    array = np.array(values)
    if array.dtype == object:
        raise ValueError(f"{column}: found an integer above 64 bits, expected numbers of {code}")
    if array.dtype.kind == "f" and int in kinds and array.tolist() != values:
        raise ValueError(f"{column}: found integers among other numbers, which do not hold them; write all alike")
    try:
        return as_field(array, np.dtype("<" + code))
    except ValueError as error:
        raise ValueError(f"field {column}: {error}") from error


def ragged(lists: Sequence["np.ndarray[Any, Any]"]) -> Ragged:
    values = np.concatenate(lists) if lists else np.empty(0, np.int64)
    return Ragged(values, offsets_of([len(values) for values in lists]))


class SpanCollector:
    """Spans of one track of a batch, from JSON values to columns."""

    def __init__(self, concepts: Concepts) -> None:
        self._concepts = concepts
        self._places: list[int] = []  # row, start and end of each
        self._counts: list[int] = []
        self._values: list[int] = []
        self._scores: list[float] = []
        self._own: list[str | None] = []

    def add(self, row: int, spans: Any, column: str) -> None:
        """Spans of a document. Raises: ValueError that says which span is wrong, and how."""
        if not isinstance(spans, list):
            raise ValueError(f"{column}: found {spans!r:.100}, expected a list of spans")
        known, i = self._concepts, 0
        try:
            for i, span in enumerate(spans):  # noqa: B007 - read below
                if type(span) is not dict or span.keys() != known.keys:
                    name = own_text(span, known.keys) if type(span) is dict else None
                    if name is None:
                        expected = known.expected(span if type(span) is dict else ())
                        raise ValueError(f"found {span!r:.100}, expected an object with {expected}")
                    self._own += [None] * (len(self._counts) - len(self._own))
                    self._own.append(check_own(span[name], name))
                start, end, concepts = span["start"], span["end"], span["concepts"]
                if type(start) is not int or type(end) is not int or type(concepts) is not list:
                    raise ValueError(f"found {span!r:.100}, expected integers start and end and a list of concepts")
                if not -_FAR < start <= end < _FAR:
                    raise ValueError(f"found [{start}, {end}), expected start <= end")
                try:
                    self._values += [known.ids[name] for name in concepts]
                except (KeyError, TypeError):  # ids, or something wrong
                    self._values += map(known.id, concepts)
                self._counts.append(len(concepts))
                self._places += (row, start, end)
                if known.highest is not None:
                    self._scores += known.scores(span["scores"], len(concepts))
        except ValueError as error:
            raise ValueError(f"{column}[{i}]: {error}") from error

    def finish(self) -> RawSpans:
        row, start, end = np.array(array("q", self._places)).reshape(-1, 3).T  # faster than of a list
        values = self._concepts.pairs(np.array(array("q", self._values)), self._scores)
        own = [*self._own, *[None] * (len(row) - len(self._own))] if self._own else None
        return RawSpans(row, start, end, Ragged(values, offsets_of(np.array(array("q", self._counts)))), own=own)


def cut_list(line: bytes, key: bytes) -> tuple[bytes, NDArray[np.int64]] | None:
    """(line with 0 in place of the list, integers of the list) for the only list called `key`; None if in doubt.

    Most bytes of tokenized jsonl are such lists, which a kernel parses; in doubt the `json` module does, the reference.
    key: a JSON string, quotes included. The caller parses the rest and checks that the 0 stands where it should: a
    nested object may have the same key.
    """
    at = line.find(key)
    if at < 0 or line.find(key, at + 1) >= 0:
        return None
    begin = line.find(b"[", at)
    if begin < 0 or line[at + len(key) : begin].strip() != b":":
        return None
    end = line.find(b"]", begin)
    if end < 0:
        return None
    out = np.empty((end - begin) // 2 + 1, np.int64)
    count = parse_digits(np.frombuffer(line, np.uint8, end - begin - 1, begin + 1), out)
    if count < 0:
        return None
    return line[:begin] + b"0" + line[end + 1 :], out[:count]
