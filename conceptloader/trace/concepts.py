"""What carries the concepts that SQL names: documents, tokens and windows, by the index or by reading the track.

`'NAME' in TRACK` and `score(TRACK, 'NAME')` become columns of their own, so that no list of names is made, and a track
with an index is not read. They are found in the tree that DuckDB makes of the text; within a subquery they stay what
they are: of a list.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.packages import need
from conceptloader.base.version import PAGES
from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import concepts_of, ragged, scores_of
from conceptloader.format.read.concepts import united
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.index import open_index
from conceptloader.format.spec.columns import Ints
from conceptloader.trace.sql import EXTRA, ask, parsed

logger = logging.getLogger(__name__)
K = TypeVar("K")
Intervals = tuple[Ints, Ints]
"""Starts and ends of disjoint intervals of tokens, in order, none of them empty."""

_CHUNK_TOKENS = 1 << 20


class Concept(NamedTuple):
    """A concept that an expression names, by name or id; scored: whether it asks for its score."""

    track: str
    concept: str | int
    scored: bool = False


class Expression:
    """SQL that is true for documents or tokens.

    Attributes:
        sql: What it says with a column, see `Columns`, in place of each of `concepts`.

    Args:
        text: The SQL.
        tracks: The tracks of concepts that there are.
        option: What the text is called in messages.
        tokens: Whether it is about tokens, which have concepts alone.

    Raises:
        ConfigError: If it is no expression, or of tokens and more than concepts.
    """

    def __init__(self, text: str, tracks: Collection[str], option: str = "where", tokens: bool = False) -> None:
        self.option, self.concepts = option, list[Concept]()
        self._tracks, other = {track.lower(): track for track in tracks}, set[str]()
        duckdb = need("duckdb", f"{option}: " + EXTRA.format("duckdb"))
        with duckdb.connect() as database:
            parsed(database, f"SELECT {text}", option)  # no text that leaves the parentheses
            tree = parsed(database, f"SELECT (\n{text}\n)", option)
            node = tree["statements"][0]["node"]
            node["select_list"] = self._with_columns(node["select_list"], other)
            if tokens and (other or not self.concepts):
                known = ", ".join(sorted(tracks)) or "none"
                expected = (
                    f"'NAME' in TRACK or score(TRACK, 'NAME'), joined by and, or, not; tracks of concepts: {known}"
                )
                raise ConfigError(
                    option, ", ".join(sorted(other)) or f"{text:.200}", expected, f"see {PAGES}/subsets.md"
                )
            ((sql,),) = database.execute("SELECT json_deserialize_sql($1)", [json.dumps(tree)]).fetchall()
        self.sql = sql.removeprefix("SELECT ") if self.concepts else text

    def _with_columns(self, node: Any, other: set[str]) -> Any:
        """A tree of SQL with a column for each test of a concept. other: gets what else it asks, as its text has it."""
        if isinstance(node, list):
            return [self._with_columns(one, other) for one in node]
        if not isinstance(node, dict):
            return node
        name, given = node.get("function_name"), [one["expression"] for one in node.get("arguments", ())]
        if name in ("contains", "score") and [one["class"] for one in given] == ["COLUMN_REF", "CONSTANT"]:
            track = self._tracks.get(".".join(given[0]["column_names"]).lower())
            literal = given[1]["literal"]
            if track is not None and literal["kind"] in ("STRING", "INTEGER"):
                named = int(literal["text"]) if literal["kind"] == "INTEGER" else literal["text"]
                one = Concept(track, named, name == "score")
                if one not in self.concepts:
                    self.concepts.append(one)
                return {**given[0], "column_names": [column_of(self.concepts.index(one))]}
        kind = node.get("class")
        if kind in ("COLUMN_REF", "FUNCTION", "SUBQUERY", "STAR", "WINDOW") and name not in ("greatest", "least"):
            other.add(".".join(node.get("column_names", ())) or name or kind.lower())
        return node if kind == "SUBQUERY" else {key: self._with_columns(one, other) for key, one in node.items()}


def column_of(number: int) -> str:
    """The column that stands for a concept of an expression."""
    return f"concept${number}"


class _TrackSpans:
    """Spans of the concepts of a track: by its index, or else by reading it; then a warning says once how to build one.

    scored: with the scores of their concepts, which no index has. chunk: tokens that are best asked for at once.

    Raises: FormatError for a corrupt index, or one of a dataset that was rebuilt since.
    """

    def __init__(self, dataset: Dataset, track: str, scored: bool) -> None:
        self._dataset, self._track, self._scored = dataset, track, scored
        self._index = None if scored else open_index(dataset, track)
        self.chunk = _CHUNK_TOKENS if self._index is None else self._index.chunk
        if self._index is None and not scored and dataset.num_tokens > _CHUNK_TOKENS:
            _warn_of_reading(dataset.path, track)
        self._held = lru_cache(maxsize=1)(self._read)  # other concepts of the same tokens are asked for next

    def of(self, concept: int, first: int, last: int) -> tuple[Ints, Ints, NDArray[np.float64]]:
        """Those that carry a concept and touch tokens [first, last) of the dataset, with scores, which are 1 without.

        Without scores they are disjoint and in order.
        """
        if self._index is not None:
            start, end = self._index.spans(concept, first, last)
        else:
            start, end, ids, scores = self._held(first, last)
            having = ids == concept
            if self._scored:
                return start[having], end[having], scores[having]
            start, end = united(np.zeros(having.sum(), np.int64), start[having], end[having])[1:]
        return start, end, np.ones(len(start))

    def _read(self, first: int, last: int) -> tuple[Ints, Ints, Ints, NDArray[np.float64]]:
        """Each concept of each span: the span's start and end, the concept's id and score."""
        parts = [(*[np.zeros(0, np.int64)] * 3, np.zeros(0))]
        for level in self._dataset.levels[self._track]:
            for shard, start, end, records in self._dataset.span_places(level, first, last):
                asked = self._dataset.files, shard, level, records
                offsets, ids = concepts_of(*asked, self._dataset.tracks[self._track].num_ids)
                scores = scores_of(*asked) if self._scored else np.zeros(len(ids))
                counts = np.diff(offsets)
                parts.append((np.repeat(start, counts), np.repeat(end, counts), ids, scores))
        start, end, ids, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
        return start, end, ids, scores


@cache  # once, not with each entry of the configuration that reads it
def _warn_of_reading(path: str, track: str) -> None:
    logger.warning(
        "%s: track %s has no index: all of it is read; `conceptloader index %s --track %s` builds one",
        path, track, path, track,
    )  # fmt: skip


def ids_of(datasets: Mapping[K, Dataset], concepts: Sequence[Concept], option: str = "where") -> dict[K, list[int]]:
    """Of each dataset that has all tracks the ids of the concepts, -1 for those that only others know.

    Raises: ConfigError for a track, a concept or scores that none has.
    """
    having = {key: ds for key, ds in datasets.items() if all(one.track in ds.concept_tracks for one in concepts)}
    found: dict[K, list[int]] = {key: [] for key in having}
    for one in concepts:
        of = [ds for ds in datasets.values() if one.track in ds.concept_tracks]
        if not of:
            known = ", ".join(sorted({name for ds in datasets.values() for name in ds.concept_tracks})) or "none"
            raise ConfigError(option, f"no track {one.track!r} of concepts", f"one of {known}")
        if one.scored and any(ds.files.concepts(one.track).scores is None for ds in having.values()):
            raise ConfigError(option, f"the track {one.track!r} without scores", "a track with scores")
        if max(_id_of(ds, one) for ds in of) < 0:
            names = sorted({name for ds in of for name in ds.vocabulary(one.track) or ()})
            ids = f"its {max(ds.tracks[one.track].num_ids for ds in of):,} ids"
            if isinstance(one.concept, str) and names:
                ids = f"its {len(names):,} names, such as {', '.join(names[:10])}"
            raise ConfigError(option, f"{one.concept!r} of the track {one.track!r}", f"one of {ids}")
        for key, ds in having.items():
            found[key].append(_id_of(ds, one))
    return found


def _id_of(dataset: Dataset, one: Concept) -> int:
    """The id of a concept, which is a number already or a name; -1 for none."""
    names = dataset.vocabulary(one.track)
    if isinstance(one.concept, int) or (names is None and one.concept.isdecimal()):
        return int(one.concept) if int(one.concept) < dataset.tracks[one.track].num_ids else -1
    return names.index(one.concept) if names is not None and one.concept in names else -1


class Columns:
    """The columns for the concepts of an expression. ids: of these, see `ids_of`."""

    def __init__(self, dataset: Dataset, expression: Expression, ids: Sequence[int]) -> None:
        self._expression = expression
        kinds = {(one.track, one.scored) for one in expression.concepts}
        spans = {kind: _TrackSpans(dataset, *kind) for kind in kinds}
        self._tests = [(spans[one.track, one.scored], id) for one, id in zip(expression.concepts, ids, strict=True)]
        self.chunk = min((one.chunk for one in spans.values()), default=_CHUNK_TOKENS)
        self.types = {column_of(k): "double" if c.scored else "bool" for k, c in enumerate(expression.concepts)}

    def of(self, start: Ints, stop: Ints) -> dict[str, Any]:
        """Of disjoint ranges [start, stop) of tokens, ascending: whether any has a concept, or the highest score."""
        arrow = need("pyarrow", EXTRA.format("pyarrow"))
        if not self._tests or not len(start):
            return {}
        some = np.flatnonzero(start < stop)
        best = np.full((len(self._tests), len(start)), -np.inf)
        for at in range(int(start[0]), int(stop[-1]), self.chunk):
            # One part of the data after the other: what is read of it serves all tests.
            for values, (spans, id) in zip(best, self._tests, strict=True):
                begin, end, scores = spans.of(id, at, min(at + self.chunk, int(stop[-1])))
                low = np.searchsorted(stop[some], begin, side="right")
                counts = np.maximum(np.searchsorted(start[some], end) - low, 0)
                np.maximum.at(values, some[ragged(low, counts)], np.repeat(scores, counts))
        none = best == -np.inf
        return {
            name: arrow.array(values, mask=no) if kind == "double" else arrow.array(~no)
            for (name, kind), values, no in zip(self.types.items(), best, none, strict=True)
        }

    def tokens(self, first: int, last: int) -> Intervals:
        """The tokens of [first, last) for which the expression is true, in the longest pieces."""
        parts = [self._tokens(at, min(at + self.chunk, last)) for at in range(first, last, self.chunk)]
        start, stop = (np.concatenate(column) for column in zip((np.zeros(0, np.int64),) * 2, *parts, strict=True))
        apart = start[1:] != stop[:-1]  # else one piece, read in two chunks
        return start[np.append(True, apart)[: len(start)]], stop[np.append(apart, True)[: len(stop)]]

    def _tokens(self, first: int, last: int) -> Intervals:
        arrow, found = need("pyarrow", EXTRA.format("pyarrow")), [np.array([first, last])]
        for spans, id in self._tests:
            found += spans.of(id, first, last)[:2]
        border = np.unique(np.clip(np.concatenate(found), first, last))
        table = arrow.table(self.of(border[:-1], border[1:]))
        if self._expression.sql.strip() == f'"{column_of(0)}"':
            held = table[0].to_numpy()
        else:
            text = f"SELECT coalesce((\n{self._expression.sql}\n), false) AS held FROM tokens"
            some = ask(text, {"tokens": table}, self._expression.option)
            held = np.concatenate([one[0].to_numpy(zero_copy_only=False) for one in some])
        change = np.flatnonzero(np.diff(np.concatenate([[False], held.astype(bool), [False]])))
        return border[change[::2]], border[change[1::2]]
