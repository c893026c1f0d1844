"""Which columns the input has, from its first records, so that usual inputs need no options."""

from collections.abc import Mapping, Sequence
from typing import Any

from conceptloader.base.strict import unknown
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.parquet import open_parquet
from conceptloader.ingest.records.columns import MAIN_TRACK, SPAN_FIELDS, SPANS_PREFIX, Columns, column_of
from conceptloader.ingest.records.features import features_of, label_names
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
    problem = result.problem(found) if strict else None
    if problem:
        raise InputError.saying(f"{path}: the first records", problem)
    return result


def with_labels(
    given: Mapping[str, Sequence[str]], sources: Sequence[Source], columns: Columns
) -> dict[str, Sequence[str]]:
    """The vocabularies, and for tracks without one the names that `datasets` keeps of their labels."""
    field = columns.span_fields.get("concepts", "concepts")
    found = {track: labels_of(sources, column, field) for track, column in columns.tracks.items() if track not in given}
    return {**given, **{track: names for track, names in found.items() if names is not None}}


def labels_of(sources: Sequence[Source], column: str | None, field: str) -> Sequence[str] | None:
    """Names of the labels in a field of the spans of a column, if the first table has some; None: of a column."""
    path = next((source.path for source in sources if source.row_groups is not None), None)
    if path is None:
        return None
    with open_parquet(path) as file:
        features = features_of(path, file.schema_arrow)
    feature: Any = features if column is None else features.get(column)
    for _ in range(2 if column is not None else 0):  # a list of objects, or before datasets 4 an object of lists
        feature = feature[0] if isinstance(feature, list) and feature else feature
        feature = feature.get("feature", feature) if isinstance(feature, dict) else feature
    return label_names(feature.get(field)) if isinstance(feature, dict) else None


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
