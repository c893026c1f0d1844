"""A batch of documents between the reader and the writer, by column, so that nothing is done token by token."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import InputError
from conceptloader.format.read.bulk import ragged
from conceptloader.format.spec.columns import Ints, offsets_of


@dataclass(eq=False)
class BadRow(Exception):
    """Row `row` of a batch, or with -1 the whole file, cannot be ingested.

    Whoever knows the file turns this into an InputError. rows: what is wrong with each of several, for those who skip
    them.
    """

    row: int
    problem: str
    rows: Mapping[int, str] = field(default_factory=dict)


class BadRecord(InputError):
    """A record, named by file and line or row, that a build can continue without."""


@dataclass
class Ragged:
    """Lists end to end: list i is values[offsets[i]:offsets[i + 1]]."""

    values: NDArray[Any]
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, lists: Ints) -> "Ragged":
        """The lists at `lists`, in that order."""
        starts, lengths = self.offsets[lists], self.offsets[lists + 1] - self.offsets[lists]
        return Ragged(self.values[ragged(starts, lengths)], offsets_of(lengths))


@dataclass
class RawSpans:
    """Spans of one track as they stand in the input.

    They are the row of the document, [start, end) in its characters or tokens, and concepts, all int64 [m] (concepts: m
    lists of their track's `ConceptsCodec.dtype`). whole: bool [m], the spans that hold everything of their document,
    the eos that ends it included; None: no span does. own: of each the text that it says it has, None for none; None:
    no span does.
    """

    row: Ints
    start: Ints
    end: Ints
    concepts: Ragged
    whole: NDArray[np.bool_] | None = None
    own: list[str | None] | None = None

    def take(self, spans: Ints) -> "RawSpans":
        """Those at `spans`, in that order, none marked as whole, without texts of their own."""
        return RawSpans(self.row[spans], self.start[spans], self.end[spans], self.concepts.take(spans))


@dataclass
class RowBatch:
    """Documents as read. texts, or tokens (n lists), is given. An empty id means none.

    metadata: one encoded record per document. fields: values aligned with all tokens of the batch. truncated:
    conversations of which turns were dropped. numbers: by track, an encoded record per document, None for none.
    spelled: special tokens that texts of these tokens spell, by name. unprinted: fields of messages that a template
    omitted, by name. answers: those of conversations with a loss; unended: row, start, end and text of each that has
    none on a token that ends it.
    """

    ids: list[str]
    texts: list[str] | None
    tokens: Ragged | None
    spans: dict[str, RawSpans]
    metadata: list[bytes] | None = None
    fields: dict[str, NDArray[Any]] = field(default_factory=dict)
    truncated: int = 0
    numbers: dict[str, list[bytes | None]] = field(default_factory=dict)
    spelled: Mapping[str, int] = field(default_factory=dict)
    unprinted: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    unended: list[dict[str, Any]] = field(default_factory=list)
