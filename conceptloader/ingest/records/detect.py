"""Which columns the input has, from its first records, so that usual inputs need no options."""

from collections.abc import Mapping, Sequence

from conceptloader.base.strict import unknown
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.records.columns import MAIN_TRACK, SPAN_FIELDS, SPANS_PREFIX, Columns, column_of
from conceptloader.ingest.records.inputs import Source
from conceptloader.ingest.records.lines import read_blocks
from conceptloader.ingest.records.records import read_record
from conceptloader.ingest.records.table import column_types

_OURS = "text", "tokens", "id", "spans", "metadata", *SPAN_FIELDS


def detect_columns(
    sources: Sequence[Source],
    names: Mapping[str, str] | None = None,
    *,
    metadata_columns: Sequence[str] = (),
    fields: Mapping[str, str] | None = None,
    numbers: Mapping[str, str] | None = None,
    ignored: Sequence[str] = (),
    strict: bool = False,
) -> Columns:
    """Columns as given, and for the rest as the first block of records has them.

    `text` or `tokens` is the content, whichever is there; `spans` is the track concepts and `spans_<track>` the track
    of that name; `metadata` is the metadata object. names: what these columns, `id`, and the fields of spans are
    called, where that differs. strict: the first records have no others.

    Raises: ConfigError if both text and tokens are there or named, InputError for an empty corpus or broken records,
    and with `strict` for columns that are not known, all of them.
    """
    path, there = first_columns(sources)
    found, names = there - set(ignored), names or {}
    for ours in names:
        if ours not in _OURS and not ours.startswith(SPANS_PREFIX):
            raise unknown(f"--column {ours}", ours, _OURS, "column or field of a span")
    text, tokens = names.get("text"), names.get("tokens")
    if text is None and tokens is None:
        if {"text", "tokens"} <= found:
            raise ConfigError(
                "columns",
                "both text and tokens",
                "a single column of content",
                "choose --column text=NAME or tokens=NAME, and ignore the other: --ignore-column NAME",
            )
        text, tokens = (None, "tokens") if "tokens" in found else ("text", None)
    usual = found - set(names.values()) | names.keys()
    spans = {name for name in usual if name == column_of(MAIN_TRACK) or name.startswith(SPANS_PREFIX)}
    columns = {_track_of(name): names.get(name, name) for name in sorted(spans, key=_track_of)}
    metadata = names.get("metadata", "metadata")  # one that is named may come later, as a track may
    result = Columns(
        text=text,
        tokens=tokens,
        id=names.get("id", "id"),
        tracks=columns,
        span_fields={name: names[name] for name in SPAN_FIELDS if name in names},
        metadata=metadata if metadata in {*found, names.get("metadata")} and metadata not in metadata_columns else None,
        metadata_columns=metadata_columns,
        fields=fields or {},
        numbers=numbers or {},
        ignored=ignored,
    )
    stored = {*metadata_columns, *result.fields, *result.numbers, result.metadata}
    named = {*stored, *(name for ours, name in names.items() if ours not in SPAN_FIELDS)}
    for name in ignored:
        column = name.partition(".")[0]
        if name in named:
            raise ConfigError(
                f"--ignore-column {name}", "another option that reads it", "one of the two", "omit one of them"
            )
        if name not in there and column in stored:
            rule, fix = "a column, or a field of spans or messages", f"write {column} without it, or ignore {column}"
            raise ConfigError(f"--ignore-column {name}", f"a field of {column}, which is stored whole", rule, fix)
    problem = result.problem(found) if strict else None
    if problem:
        raise InputError.saying(f"{path}: the first records", problem)
    return result


def _track_of(column: str) -> str:
    return MAIN_TRACK if column == "spans" else column.removeprefix(SPANS_PREFIX)


def first_columns(sources: Sequence[Source]) -> tuple[str, set[str]]:
    """The first file that holds a record, and names of the columns in its first block."""
    for source in sources:
        if source.row_groups is not None:
            return source.path, {*column_types(source.path)}
        for numbers, rows, _ in read_blocks(source.path, source.compression):
            names: set[str] = set()
            problem: InputError | None = None
            for number, row in zip(numbers, rows, strict=True):
                try:
                    names |= read_record(row).keys()
                except ValueError as error:  # reading the shard says it, or leaves the record out
                    problem = problem or InputError.saying(source.row_name(number), str(error))
            if names:
                return source.path, names
            if problem is not None:
                raise problem
    shown = ", ".join(source.path for source in sources[:5]) + (", ..." if len(sources) > 5 else "")
    raise InputError(shown, "an empty corpus", "at least one record", "pass INPUTs of which one has a record")
