"""Which columns of the input mean what. The same for jsonl keys and parquet columns."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from conceptloader.base.strict import unknown
from conceptloader.errors import ConfigError

MAIN_TRACK = "concepts"
METADATA_TRACK = "metadata"
LISTS = "concepts", "scores"
OWN_TEXT = "surface", "text", "word"  # the text that a span says it has
SPAN_FIELDS = "start", "end", *LISTS, OWN_TEXT[0]
SPANS_PREFIX = "spans_"


def column_of(track: str) -> str:
    """The usual name of the column with the spans of a track."""
    return "spans" if track == MAIN_TRACK else SPANS_PREFIX + track


def own_text(found: Collection[str], known: Collection[str]) -> str | None:
    """The field of a span's own text, if those `found` are the `known` ones and that."""
    name = next((name for name in OWN_TEXT if name in found), None)
    return name if {*found} == {*known, name} else None


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of the input hold what.

    Attributes:
        text: Column of the text, or None where `tokens` is given.
        tokens: Column of documents that are tokenized already, or None.
        id: Column of the document's name.
        tracks: Column of the spans, by track.
        span_fields: Names of `start`, `end`, `concepts`, `scores` and `surface` (a span's own text) in spans, where
            they differ. Where concepts and scores have another name, one of them may stand without a list.
        metadata: Column of a metadata object, or None.
        metadata_columns: Further columns that go into it.
        fields: token-aligned columns and their types, e.g. {"loss_mask": "u1"}.
        numbers: Columns with one number per document, and their types, e.g. {"quality": "f4"}: tracks of these names.
        ignored: Columns that may be there, and fields of spans, as COLUMN.FIELD.
    """

    text: str | None = "text"
    tokens: str | None = None
    id: str = "id"
    tracks: Mapping[str, str] = field(default_factory=lambda: {MAIN_TRACK: "spans"})
    span_fields: Mapping[str, str] = field(default_factory=dict)
    metadata: str | None = None
    metadata_columns: Sequence[str] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()

    def __post_init__(self) -> None:
        if (self.text is None) == (self.tokens is None):
            raise ConfigError(
                "columns",
                "both or none of text and tokens",
                "either text or tokens",
                "pass --column text=NAME or --column tokens=NAME",
            )
        if self.fields and self.text is not None:
            raise ConfigError(
                "columns",
                "token-aligned fields with text",
                "token-aligned fields with tokens only",
                "omit --field, or pass --column tokens=NAME",
            )
        for name in self.span_fields:
            if name not in SPAN_FIELDS:
                raise unknown("columns: span_fields", name, SPAN_FIELDS, "field of a span")
        if taken := sorted({*self.tracks, METADATA_TRACK} & self.numbers.keys()):
            raise ConfigError(
                "columns: numbers", repr(taken[0]), "no name of another track", "pass another NAME to --number"
            )
        used = self._roles()
        repeated = sorted({name for name in used if used.count(name) > 1})
        if repeated:
            fix = "name another column for one role (--column, such as id=NAME), or omit an option"
            raise ConfigError("columns", f"{repeated} in two roles", "each column in one", fix)

    @property
    def content(self) -> str:
        return self.text or self.tokens or ""

    @property
    def has_metadata(self) -> bool:
        return self.metadata is not None or bool(self.metadata_columns)

    def _roles(self) -> list[str]:
        metadata = [self.metadata] if self.metadata is not None else []
        named = [*self.metadata_columns, *self.fields, *self.numbers]
        ids = [] if self.id in self.ignored else [self.id]
        return [self.content, *ids, *self.tracks.values(), *metadata, *named]

    def field_of(self, column: str, theirs: str) -> str | None:
        """What a field of spans in that column is called here; None if it is ignored."""
        if f"{column}.{theirs}" in self.ignored:
            return None
        return next((ours for ours, name in self.span_fields.items() if name == theirs), theirs)

    def wanted(self) -> list[str]:
        """Every column that is read."""
        return list(dict.fromkeys(self._roles()))

    def objects(self) -> list[str]:
        """Those of which Python looks at each value: all but tokens, spans and fields."""
        arrays = {self.tokens, *self.tracks.values(), *self.fields}
        return [name for name in self.wanted() if name not in arrays]

    def problem(self, found: Collection[str]) -> str | None:
        """Why a record or table with the columns `found` cannot be read, or None. Only the content is mandatory."""
        unknown = sorted(set(found) - set(self.wanted()) - set(self.ignored))
        if self.content not in found:
            return (
                f"found columns {', '.join(sorted(found)) or 'none'}, expected {self.content!r}; "
                "name the column of the content (--column text=NAME or tokens=NAME)"
            )
        if unknown:
            listed = f"column{'s' if unknown[1:] else ''} {', '.join(map(repr, unknown))}"
            padded = self.tokens and {"labels", "attention_mask"} & {*unknown}
            what = "without padding, which is trained on, and a list of 0 where labels are -100, else 1"
            return (
                f"found {listed}, expected some of {', '.join(self.wanted())}; declare it (--column, "
                "--metadata-column, --field, --number) or omit it (--ignore-column)"
                + (f"; write tokens {what} (--field loss_mask:u1)" if padded else "")
            )
        return None

    def to_json(self) -> dict[str, Any]:
        """For the options of a dataset."""
        found = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        later = "span_fields", "numbers"
        return {name: value for name, value in found.items() if value or name not in later}
