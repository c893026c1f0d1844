"""What a kernel found wrong, in words: a row for each kind, and the error that says it.

Kernels leave a kind, a place, a value and a limit in their state, and the file by row and column; `other` is a second
value, where a row has one. No file is read again for a message.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from conceptloader.config import View
from conceptloader.config.packing import FIT, FIT_BLOCK
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.spec.layout import DAMAGED
from conceptloader.kernels import records as kinds
from conceptloader.kernels.system import DOCUMENTS
from conceptloader.loader.batch.layout import BatchLayout
from conceptloader.loader.batch.open_files import OpenFiles


def _unsigned(value: int) -> int:
    return value % (1 << 64)  # as numbers of 8 bytes are in files, but for tokens


def _real(bits: int) -> Any:
    return np.uint32(bits).view(np.float32)


class Words(NamedTuple):
    """`found`, `expected` and `remedy` name facts in braces, see `explain`; so does `where`: what they are of.

    shown: the value that was found, of that in the state.
    """

    found: str
    expected: str
    remedy: str = DAMAGED
    where: str = "{path}"
    error: type[ConfigError | FormatError] = FormatError
    shown: Callable[[int], Any] = _unsigned


WORDS = {
    # place: number of the member, or of the window
    kinds.ABSENT_MEMBER: Words(
        "no dataset for it in the configuration",
        "its dataset, since a sample from before its removal is asked for",
        "name its dataset under `datasets` again, or pass the checkpoint's own configuration",
        "member {place} of the order",
        ConfigError,
    ),
    kinds.ABSENT_WINDOW: Words(
        "sample {place} of it in the order",
        "a number below {limit}",
        "give an order of samples below {limit}",
        "dataset {name}",
        ConfigError,
    ),
    # place: token of the shard
    kinds.BAD_TOKEN: Words(
        "id {value} as token {place} of shard {shard}, token {token} of the dataset",
        "ids in [0, {limit}), {vocabulary}",
        shown=int,
    ),
    kinds.BAD_WEIGHT: Words(
        "{value} in field {field} as the weight of token {place} of shard {shard}, token {token} of the dataset",
        "finite weights",
        "rebuild field {field}, or name the token under `exclude`",
        shown=_real,
    ),
    # place: document of the shard
    kinds.BAD_DOCUMENT: Words(
        "document {place} of shard {shard} at tokens [{value}, {other})", "starts that do not decrease, up to {limit}"
    ),
    # place: block
    kinds.BAD_BLOCKS: Words(
        "block table entries {value} and {other}, from block {place} on", "ascending numbers below {limit}"
    ),
    # place: entry of the table. limit: of what is read, its first token, or the one after its last
    kinds.BEGINS_LATE: Words(
        "position {value} in entry {place} for tokens from {limit} on", "a position from 0 to {limit}"
    ),
    kinds.FALLS: Words("position {value} in entry {place} after {other}", "{ascending} positions in [0, {limit}]"),
    kinds.ENDS_EARLY: Words(
        "position {value} in entry {place} for tokens up to {limit}", "a position of {limit} or more"
    ),
    # place: token of the shard where the span begins, or what is read of it
    kinds.NO_SUCH_RECORD: Words(
        "record {value} of track {track} at token {token} of the dataset", "numbers below {limit}"
    ),
    kinds.MANY_SPANS: Words(  # the kernel ends there: there may be more
        "at least {value} spans of track {track} in a sample, the last of these at token {token} of the dataset",
        "at most {limit} as the manifest says",
    ),
    kinds.BAD_CONCEPT: Words(
        "concept id {value} in the span of track {track} at token {token} of the dataset",
        "ids below {limit}, the size of the vocabulary",
        where="{path} (shard {shard})",
    ),
    kinds.BAD_SCORE: Words(
        "score {value} in the span of track {track} at token {token} of the dataset", "finite scores", shown=_real
    ),
    # place: record
    kinds.BAD_OFFSET: Words("offset {value} in entry {place} of track {track}", "non-decreasing offsets up to {limit}"),
    kinds.OFFSETS_FALL: Words(
        "record {place} of track {track} at bytes [{other}, {value})", "non-decreasing offsets up to {limit}"
    ),
    kinds.NO_LIST: Words(
        "{value} bytes as record {place} of track {track}",
        "a list of concept ids, each of {limit} bytes with its score, or of numbers of as many",
    ),
    kinds.NO_NUMBER: Words(
        "{value} bytes as record {place} of track {track}",
        "a single number of {limit} bytes",
        f"{DAMAGED}, or set layout: records",
    ),
    kinds.LARGE_RECORD: Words("{value} bytes as record {place} of track {track}", "at most {limit} bytes"),
    kinds.MANY_CONCEPTS: Words(
        "{value} {items} in record {place} of track {track}", "at most {limit} as the manifest says"
    ),
    # place: document of the dataset
    kinds.LONG_DOCUMENT: Words(
        "document {place} of {value} tokens while overflow is error",
        "at most {limit}, the seq_len",
        FIT,
        "{dataset}: packing",
        ConfigError,
    ),
    kinds.NO_PLACE: Words(
        "document {place} of {value} tokens while overflow is error",
        "room for it in a pack of its block",
        FIT_BLOCK,
        "{dataset}: packing",
        ConfigError,
    ),
}


def explain(state: Any, files: OpenFiles, layout: BatchLayout, view: View | None, who: str) -> Exception:
    """The error for what a kernel left in its STATE. view: of the sample, if there is one; who: needs it."""
    words = WORDS[state["kind"]]
    row, column, place, value, other, limit = (
        int(state[name]) for name in ("row", "column", "place", "value", "other", "limit")
    )
    facts: dict[str, Any] = {"who": who, "place": place, "limit": limit}
    facts |= {"value": words.shown(value), "other": _unsigned(other)}
    if view is not None:
        dataset, shard = files.owner(row)
        track = next(iter(layout.read_tracks[int(state["track"]) :]), None)
        facts |= {
            "name": view.name,
            "dataset": view.dataset.path,
            "path": files.path(row, column),
            "shard": shard,
            "token": int(files.tables.shards[row]["base"]) + place,
            "vocabulary": "the vocabulary" if dataset.tokenizer else "as no tokenizer is known",
            "ascending": "non-decreasing" if column == DOCUMENTS else "ascending",
            "track": track.track if track else "",
            "items": "numbers" if track and track.numbers is not None else "concepts",
            "field": next((field.field for field in layout.fields[other:]), ""),
        }
    parts = f"{{who}}: {words.where}", words.found, words.expected, words.remedy
    return words.error(*(part.format(**facts) for part in parts))
