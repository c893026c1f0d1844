"""Which columns of which files mean what, where documents and the annotations of their chunks are apart."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from conceptloader.base.strict import Section
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.parquet import is_text
from conceptloader.ingest.records.table import column_types


@dataclass(frozen=True, kw_only=True)
class ConceptTable(Section):
    """A parquet file with a row for each concept.

    key: column of what the labels hold, ids or names; kind: column of its type, None if there is only one; name: column
    of its name. All other columns are kept as they are.
    """

    path: str
    key: str = "concept_id"
    kind: str | None = None
    name: str = "name"


@dataclass(frozen=True, kw_only=True)
class Chunks(Section):
    """files: parquet, a row for each chunk, in any order. join: the column with the document's id, in both files.

    labels: kind of concepts -> column with the list of a chunk's concepts, null as an empty one. concepts: what they
    are. scores: kind -> column with the list of the scores of these, of all kinds or none, finite numbers that are
    stored as score_type ("f2" or "f4"); of a concept twice in a chunk the higher one.
    starts, number: column of the documents with the list of where each chunk begins, up to the next one or the
    document's end; column of a chunk's place in this list, from 0. Or start, end: columns of the chunks. All count
    what span_unit says, by default characters (code points) of text, and tokens of documents that are given as tokens.
    status, annotated: column of what became of a chunk, and the values of chunks that were annotated; others are "not
    annotated", which is not "no concept". text: column of a chunk's text, to be compared with the document's, white
    space at the ends apart.
    `damaged`, `damaged_documents`: column of documents that says which are (true), and whether their annotation is kept
    all the same ("keep"), or dropped ("unannotated"); they are counted.
    wrong: what cannot be so is an error ("error"), or left without annotation, counted and listed ("unannotated").

    Raises ConfigError for columns that contradict each other.
    """

    files: tuple[str, ...]
    join: str
    labels: Mapping[str, str]
    concepts: ConceptTable
    scores: Mapping[str, str] = field(default_factory=dict)
    score_type: Literal["f2", "f4"] = "f4"
    starts: str | None = None
    number: str | None = None
    start: str | None = None
    end: str | None = None
    span_unit: Literal["character", "utf16", "byte", "token"] | None = None
    status: str | None = None
    annotated: tuple[str, ...] = ("ok",)
    text: str | None = None
    damaged: str | None = None
    damaged_documents: Literal["keep", "unannotated"] = "keep"
    wrong: Literal["error", "unannotated"] = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        listed, own = (self.starts, self.number), (self.start, self.end)
        if (None in listed) == (None in own) or any(listed) == any(own):
            raise ConfigError(
                "chunks",
                f"starts, number = {listed} and start, end = {own}",
                "either a list of starts in the documents and each chunk's number in it, or start and end of each "
                "chunk",
                "give the columns of one of the two",
            )
        if not self.labels:
            raise ConfigError(
                "chunks",
                "no column of labels",
                "at least one column of labels (KIND=COLUMN)",
                "set labels: {KIND: COLUMN} under chunks in the recipe",
            )
        if self.concepts.kind is None and len(self.labels) > 1:
            raise ConfigError(
                "chunks",
                f"labels of {', '.join(self.labels)}, but no column with the kind of a concept",
                "a column with the kind",
                "set kind under chunks.concepts in the recipe",
            )
        if self.scores and self.scores.keys() != self.labels.keys():
            raise ConfigError(
                "chunks",
                f"scores of {', '.join(self.scores)} and labels of {', '.join(self.labels)}",
                "scores of all kinds of labels, or of none",
                "add the other kinds to scores under chunks in the recipe, or omit scores",
            )
        for path in [*self.files, self.concepts.path]:
            check_path(path)

    @property
    def columns(self) -> list[str | None]:
        """Of the files of chunks."""
        labels = [*self.labels.values(), *self.scores.values()]
        return [self.join, *labels, self.number, self.start, self.end, self.status, self.text]

    def to_json(self) -> dict[str, Any]:
        """Without the files."""
        found = {key: value for key, value in asdict(self).items() if key != "files"}
        del found["concepts"]["path"]
        if self.span_unit is None:  # as before there were others
            del found["span_unit"]
        ordered = {name: [list(pair) for pair in found[name].items()] for name in ("labels", "scores")}
        return {**found, **ordered, "annotated": list(self.annotated)}


def check_path(path: str) -> None:
    """Raises: ConfigError for a path that a pattern of files could be taken for."""
    if any(character in path for character in "*?[]"):
        raise ConfigError(path, "one of * ? [ ] in a file's name", "a name without these characters", "rename the file")


def check_columns(chunks: Chunks, documents: Sequence[str], wanted: Sequence[str | None]) -> None:
    """All columns are there, ids and labels are comparable, and scores are numbers.

    wanted: columns of the documents, None for none. Raises: InputError.
    """
    import pyarrow as pa

    key = column_types(chunks.concepts.path)[chunks.concepts.key]
    for kind, (files, columns) in {
        "documents": (documents, wanted), "chunks": (chunks.files, chunks.columns),
    }.items():  # fmt: skip
        for file in files:
            types = column_types(file)
            if lacking := sorted({column for column in columns if column is not None} - types.keys()):
                raise InputError(
                    file,
                    f"columns {', '.join(types)}",
                    f"{', '.join(lacking)} too",
                    f"name the columns of the {kind} as they are",
                )
            ids = getattr(types[chunks.join], "value_type", types[chunks.join])  # of a dictionary, too
            if not is_text(ids) and not pa.types.is_integer(ids):
                raise InputError(
                    f"{file}: column {chunks.join!r}",
                    str(types[chunks.join]),
                    "ids: text or integers",
                    f"cast {chunks.join!r} to text or integers",
                )
            for column in chunks.labels.values() if kind == "chunks" else ():
                value = getattr(types[column], "value_type", None)
                value = getattr(value, "value_type", value)
                if value not in (None, pa.null()) and is_text(value) != is_text(getattr(key, "value_type", key)):
                    raise InputError(
                        f"{file}: column {column!r}",
                        str(types[column]),
                        f"a list of {key}, as {chunks.concepts.key} of {chunks.concepts.path}",
                        "write one of them as the other",
                    )
            for column in chunks.scores.values() if kind == "chunks" else ():
                value = getattr(types[column], "value_type", None)
                if value is None or not (pa.types.is_floating(value) or pa.types.is_integer(value)):
                    raise InputError(
                        f"{file}: column {column!r}", str(types[column]), "a list of numbers", f"cast {column!r}"
                    )
