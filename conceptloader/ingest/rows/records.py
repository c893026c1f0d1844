"""Records, such as lines of JSON, to batches. What can be wrong with one is found here or in `place`."""

import json
import operator
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from conceptloader.format.spec.codecs import MsgpackCodec
from conceptloader.format.spec.columns import Ints, as_field, offsets_of
from conceptloader.format.spec.jsonfile import each_once
from conceptloader.ingest.rows.batch import BadRow, Ragged, RawSpans, RowBatch
from conceptloader.ingest.rows.columns import Columns
from conceptloader.ingest.rows.lines import CsvRow
from conceptloader.ingest.rows.vocabulary import Concepts
from conceptloader.ingest.template import load_prefix

_FAR = 1 << 62  # more than any text has characters
_PARTS = operator.itemgetter("start", "end", "concepts")


class RecordParser:
    """Turns rows of the input, whatever they are, into batches for given columns and vocabularies (by track)."""

    def __init__(self, columns: Columns, concepts: Mapping[str, Concepts]) -> None:
        self._columns = columns
        self._concepts = concepts
        self._known = frozenset([*columns.wanted(), *columns.ignored])
        self._packer = MsgpackCodec() if columns.has_metadata else None
        self._prefix = None if columns.prefix is None else load_prefix(columns.prefix)

    def read(self, row: Any) -> dict[str, Any]:
        """The record that a row is. Raises: ValueError that says what is wrong with it."""
        raise NotImplementedError

    def parse(self, rows: Sequence[Any]) -> RowBatch:
        """The documents of `rows`. Raises: BadRow, row = index into `rows`."""
        columns = self._columns
        ids: list[str] = []
        texts: list[str] = []
        tokens: list[Any] = []
        spans = {track: SpanCollector(self._concepts[track]) for track in columns.tracks}
        metadata: list[bytes] = []
        prefixes: list[str] = []
        fields = {name: [np.empty(0, "<" + code)] for name, code in columns.fields.items()}
        for row, given in enumerate(rows):
            try:
                record = self.read(given)
                if not (self._known >= record.keys() and columns.content in record):
                    raise ValueError(columns.problem(record.keys()))
                ids.append(check_id(record.get(columns.id)))
                if columns.text is not None:
                    texts.append(check_text(record[columns.text], columns.text))
                else:
                    tokens.append(integers(record[columns.content], columns.content))
                    for name, values in fields.items():
                        values.append(_aligned(record.get(name), len(tokens[-1]), name, columns.fields[name]))
                for track, column in columns.tracks.items():
                    found = record.get(column)
                    if found:
                        spans[track].add(row, found, column)
                    elif found is not None and found != []:
                        raise ValueError(f"{column}: found {found!r:.100}, expected a list of spans")
                if self._packer:
                    metadata.append(self._packer.encode(collect_metadata(record, columns)))
                if self._prefix:
                    prefixes.append(self._prefix.render(record))
            except ValueError as error:
                raise BadRow(row, str(error)) from error
        return RowBatch(
            ids=ids,
            texts=texts if columns.text is not None else None,
            tokens=ragged(tokens) if columns.text is None else None,
            spans={track: collector.finish() for track, collector in spans.items()},
            metadata=metadata if self._packer else None,
            fields={name: np.concatenate(values) for name, values in fields.items()},
            prefixes=prefixes if self._prefix else None,
        )


class LineParser(RecordParser):
    """Lines of JSON, none of which is blank."""

    def __init__(self, columns: Columns, concepts: Mapping[str, Concepts]) -> None:
        super().__init__(columns, concepts)
        self._cut: Callable[[bytes], tuple[bytes, Any] | None] = lambda line: None
        if columns.tokens is not None and columns.tokens.isascii():
            from conceptloader.ingest.rows.digits import cut_list

            self._cut = partial(cut_list, key=json.dumps(columns.tokens).encode("ascii"))

    def read(self, row: bytes) -> dict[str, Any]:
        """A record, with its token ids as an array where the fast way works."""
        cut = self._cut(row)
        if cut is not None:
            record = parse_json(cut[0])
            if type(record.get(self._columns.content)) is int:  # else the list was another one of this name
                record[self._columns.content] = cut[1]
                return record
        return parse_json(row)


class CsvParser(RecordParser):
    """Rows of CSV: all values are texts."""

    def read(self, row: CsvRow) -> dict[str, Any]:
        return row.read()


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
            f"found broken JSON ({error.msg} at character {error.pos}), expected one object per line"
        ) from error
    except RecursionError as error:
        raise ValueError("found JSON nested too deeply, expected one object with the content of a document") from error
    if not isinstance(record, dict):
        raise ValueError(f"found a JSON {type(record).__name__}, expected one object per line")
    return record


def _refuse(name: str) -> Any:
    raise ValueError(f"found {name}, expected JSON, which has no such number; write null or leave it out")


def _finite(digits: str) -> float:
    value = float(digits)
    if value - value:
        raise ValueError(f"found {digits:.100}, expected a number of 64 bits; write it as text or leave it out")
    return value


JSON = json.JSONDecoder(object_pairs_hook=each_once, parse_constant=_refuse, parse_float=_finite)
_decode = JSON.raw_decode  # not decode, which takes longer to look for white space at both ends


def check_id(value: Any) -> str:
    """External ids are strings; integers are accepted. null means none."""
    if value is None:
        return ""
    if type(value) is int:
        return str(value)
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"id: found {value!r:.100}, expected a string or an integer")
    return check_text(value, "id")


def check_text(value: Any, column: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{column}: found {value!r:.100}, expected a string")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{column}: found half of a surrogate pair at character {error.start}, expected text; repair the text"
            ) from error
    return value


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
        raise ValueError(f"{column}: found integers beside other numbers, which do not hold them; write all alike")
    try:
        return as_field(array, np.dtype("<" + code))
    except ValueError as error:
        raise ValueError(f"field {column}: {error}") from error


def ragged(lists: Sequence["np.ndarray[Any, Any]"]) -> Ragged:
    values = np.concatenate(lists) if lists else np.empty(0, np.int64)
    return Ragged(values, offsets_of([len(values) for values in lists]))


def collect_metadata(record: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """The metadata object of a record, with the further metadata columns in it."""
    found = record.get(columns.metadata) if columns.metadata is not None else None
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"{columns.metadata}: found {found!r:.100}, expected an object")
    return {**(found or {}), **{name: record[name] for name in columns.metadata_columns if name in record}}


class SpanCollector:
    """Spans of one track of a batch, from JSON values to columns."""

    def __init__(self, concepts: Concepts) -> None:
        self._concepts = concepts
        self._rows: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[int] = []
        self._scores: list[float] = []
        self._counts: list[int] = []

    def add(self, row: int, spans: Any, column: str) -> None:
        """Spans of a document. Raises: ValueError that says which span is wrong, and how."""
        known, keys = self._concepts.ids, self._concepts.keys
        try:
            starts, ends, concepts = zip(*map(_PARTS, spans), strict=True)
            kinds = [{*map(type, each)} for each in (spans, starts, ends, concepts)]
            usual = kinds == [{dict}, {int}, {int}, {list}] and {*map(len, spans)} == {3} == {len(keys)}
            usual = usual and min(starts) > -_FAR and max(ends) < _FAR and all(map(operator.le, starts, ends))
            names = [*chain.from_iterable(concepts)]
            values = [known[name] for name in names] if known else [*map(self._concepts.id, names)]
        except (KeyError, TypeError, ValueError):
            usual = False
        if not usual:  # ids beside names, scores, or something wrong
            self._add_each(row, spans, column)
            return
        self._rows += [row] * len(starts)
        self._starts += starts
        self._ends += ends
        self._values += values
        self._counts += map(len, concepts)

    def _add_each(self, row: int, spans: Any, column: str) -> None:
        if not isinstance(spans, list):
            raise ValueError(f"{column}: found {spans!r:.100}, expected a list of spans")
        known, get, keys = self._concepts.ids, self._concepts.id, self._concepts.keys
        scored = "scores" in keys
        for i, span in enumerate(spans):
            if type(span) is not dict or span.keys() != keys:
                expected = self._concepts.expected(span if type(span) is dict else ())
                raise ValueError(f"{column}[{i}]: found {span!r:.100}, expected an object with {expected}")
            start, end, concepts = span["start"], span["end"], span["concepts"]
            if type(start) is not int or type(end) is not int or type(concepts) is not list:
                raise ValueError(
                    f"{column}[{i}]: found {span!r:.100}, expected integers start and end and a list of concepts"
                )
            if not -_FAR < start <= end < _FAR:
                raise ValueError(f"{column}[{i}]: found [{start}, {end}), expected start <= end")
            try:
                try:
                    self._values += [known[name] for name in concepts]
                except (KeyError, TypeError):
                    self._values += [get(value) for value in concepts]
                if scored:
                    self._scores += self._concepts.scores(span["scores"], len(concepts))
            except ValueError as error:
                raise ValueError(f"{column}[{i}]: {error}") from error
            self._rows.append(row)
            self._starts.append(start)
            self._ends.append(end)
            self._counts.append(len(concepts))

    def finish(self) -> RawSpans:
        return RawSpans(
            row=_int64(self._rows),
            start=_int64(self._starts),
            end=_int64(self._ends),
            concepts=Ragged(self._concepts.pairs(_int64(self._values), self._scores), offsets_of(_int64(self._counts))),
        )


def _int64(values: list[int]) -> Ints:
    return np.frombuffer(array("q", values), np.int64)  # a third of the time that NumPy takes for a list
