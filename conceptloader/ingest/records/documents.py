"""What a batch takes over from records as they are, for any input: ids, texts, metadata."""

import datetime
import decimal
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from conceptloader.errors import ConfigError, InputError
from conceptloader.format.spec.codecs import JsonCodec, NumpyCodec
from conceptloader.format.spec.jsonfile import each_once
from conceptloader.format.spec.layout import FIELD_TYPES
from conceptloader.ingest.records.batch import BadRow, Ragged, RawSpans, RowBatch
from conceptloader.ingest.records.columns import Columns

NO_NAN = "expected a finite number; say what NaN is: --number NAME:TYPE=none (no number), or =NUMBER"


class Documents:
    """Of the records that were added, by column: see `RowBatch`."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._packer = JsonCodec()
        self.ids: list[str] = []
        self.texts: list[str] | None = None if columns.text is None else []
        self.metadata: list[bytes] | None = [] if columns.has_metadata else None
        self.numbers: dict[str, list[bytes | None]] = {name: [] for name in columns.numbers}
        types = {name: number_type(code) for name, code in columns.numbers.items()}
        self._types = {name: (NumpyCodec({"dtype": code}), missing) for name, (code, missing) in types.items()}

    def add(self, record: Mapping[str, Any]) -> None:
        """Raises: ValueError that says what is wrong with it."""
        columns = self._columns
        self.ids.append("" if columns.id in columns.ignored else check_id(record.get(columns.id)))
        if self.texts is not None and columns.text is not None:
            self.texts.append(check_text(record[columns.text], columns.text))
        for name, records in self.numbers.items():
            records.append(number(record.get(name), name, *self._types[name]))
        if self.metadata is not None:
            self.metadata.append(self._packer.encode(_metadata(record, columns)))

    def batch(self, tokens: Ragged | None, spans: dict[str, RawSpans], fields: dict[str, NDArray[Any]]) -> RowBatch:
        """These documents with their tokens, if they have no texts, spans by track, and fields."""
        return RowBatch(
            ids=self.ids,
            texts=self.texts,
            tokens=tokens,
            spans=spans,
            metadata=self.metadata,
            fields=fields,
            numbers=self.numbers,
        )


def each(rows: Iterable[Any], check: Callable[[Any], Any]) -> None:
    """`check` of every row. Raises: BadRow with those of which it raises ValueError."""
    bad: dict[int, str] = {}
    for row, value in enumerate(rows):
        try:
            check(value)
        except ValueError as error:
            bad[row] = str(error)
    if bad:
        raise BadRow(next(iter(bad)), next(iter(bad.values())), bad)


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


def check_own(value: Any, field: str) -> str | None:
    """The text that a span says it has; null means none."""
    return None if value is None else check_text(value, field)


def number_type(given: str) -> tuple[str, str | None]:
    """(type, what null and NaN become: a number, or "none"; None: nobody says) of TYPE or TYPE=MISSING.

    Raises: ConfigError.
    """
    code, mark, missing = given.partition("=")
    try:
        if mark and missing != "none" and code in FIELD_TYPES:
            whole = missing.removeprefix("-").isdecimal()
            number(int(missing) if whole else float(missing), given, NumpyCodec({"dtype": code}))
    except ValueError:
        fix = f"pass --number NAME:{code}=none, or --number NAME:{code}=0"
        raise ConfigError(f"number {given}", repr(missing), f"a number that {code} holds, or none", fix) from None
    return code, missing if mark else None


def number(value: Any, column: str, codec: NumpyCodec, missing: str | None = None) -> bytes | None:
    """A record of one number; None where there is none. missing: see `number_type`. Raises: ValueError."""
    if type(value) is float and math.isnan(value):
        if missing is None:
            raise ValueError(f"{column}: found nan, {NO_NAN}")
        value = None
    if value is None:
        return None if missing in (None, "none") else codec.encode([codec.dtype.type(missing)])
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{column}: found {value!r:.100}, expected a finite number, or null for none")
    try:
        return codec.encode([value])
    except InputError as error:
        wide = type(value) is int and abs(value) >> 63 and codec.dtype.kind == "f"
        what = "an integer of 64 bits" if wide else f"a number that {codec.dtype} holds"
        raise ValueError(f"{column}: found {value!r:.100}, expected {what}") from error


def _metadata(record: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """The metadata object of a record, with the further metadata columns in it."""
    found = plain(record.get(columns.metadata)) if columns.metadata is not None else None
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"{columns.metadata}: found {found!r:.100}, expected an object")
    more = {name: plain(record[name]) for name in columns.metadata_columns if name in record}
    for name in more.keys() & (found or {}).keys():
        if more[name] != (found or {})[name]:
            raise ValueError(
                f"{columns.metadata}: found {name!r} with another value than in the column {name!r}, expected one "
                f"value; pass --ignore-column {name} in place of --metadata-column, or rename the column"
            )
    return {**(found or {}), **more}


def plain(value: Any) -> Any:
    """Values of parquet types in JSON's types, but for bytes.

    Times in ISO 8601, decimals as text, maps as objects; NaN and infinities, which JSON has not, are null.
    """
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            odd = [key for key, _ in value if not isinstance(key, str)]
            if odd:  # which records would hold, but not give back
                raise ValueError(f"found a map with the key {odd[0]!r:.100}, expected texts as keys; ignore the column")
            return each_once([(key, plain(item)) for key, item in value])
        return [plain(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):  # or, where pandas is installed, its own, with a text of its own
        if getattr(value, "nanoseconds", 0):
            raise ValueError(f"found the duration {value}, expected none with nanoseconds; cast it to text")
        return str(datetime.timedelta(value.days, value.seconds, value.microseconds))
    if isinstance(value, decimal.Decimal):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
