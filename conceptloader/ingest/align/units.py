"""What offsets of spans count, and whether a span's own text is what stands there."""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.ingest.records.batch import BadRow, RawSpans

_TRIED = 200  # spans on which other readings of the offsets are tried
_SHOWN = 40  # characters of a text in a message

Decode = Callable[[int, int, int], str | None]
"""The text of tokens [start, end) of a document of a batch, None where there are none."""


@lru_cache(maxsize=4)
def _encoded(text: str, codec: str) -> bytes:
    return text.encode(codec)


@dataclass(frozen=True)
class Unit:
    """plural: in messages and manifests. beyond: the code points from which on a character is one longer.

    codec: of Python, with units of `size` bytes; empty for characters, and for tokens, which no text says.
    """

    plural: str
    beyond: tuple[int, ...] = ()
    codec: str = ""
    size: int = 1

    def cut(self, text: str, start: int, end: int) -> str | None:
        """What stands at [start, end), None for no text."""
        data = _encoded(text, self.codec) if self.codec else text
        if not 0 <= start <= end <= len(data) // self.size:
            return None
        part = data[start * self.size : end * self.size]
        try:
            return part if isinstance(part, str) else part.decode(self.codec)
        except UnicodeDecodeError:
            return None


UNITS = {
    "character": Unit("characters"),
    "utf16": Unit("UTF-16 code units", (0x10000,), "utf-16-le", 2),
    "byte": Unit("bytes", (0x80, 0x800, 0x10000), "utf-8"),
    "token": Unit("tokens"),
}
"""By the names in `rules.SPAN_UNITS`."""

_CHARACTER = UNITS["character"]
_MISTAKES: dict[str, Callable[[str, int, int], str | None]] = {
    "ends that are the last character": lambda text, start, end: _CHARACTER.cut(text, start, end + 1),
    "offsets from 1": lambda text, start, end: _CHARACTER.cut(text, start - 1, end - 1),
    "offsets from 1, with ends that are the last character": lambda text, a, b: _CHARACTER.cut(text, a - 1, b),
    "offsets of the text in NFC": lambda text, a, b: _CHARACTER.cut(unicodedata.normalize("NFC", text), a, b),
}
"""What else offsets are found to be, for messages."""


def in_characters(texts: Sequence[str], spans: RawSpans, unit: str, track: str) -> RawSpans:
    """The spans with offsets in characters, from those in `unit`, which lie within their texts.

    Raises: BadRow for an offset inside of a character.
    """
    kind = UNITS[unit]
    if not kind.beyond or all(map(str.isascii, texts)):
        return spans
    first, ends = _positions(texts, kind)
    base = first[spans.row]
    found = []
    for offset in (spans.start, spans.end):
        at = np.searchsorted(ends, ends[base] + offset)
        inside = ends[at] != ends[base] + offset
        if inside.any():
            i = int(np.argmax(inside))
            raise BadRow(
                int(spans.row[i]),
                f"{track}: found span [{spans.start[i]}, {spans.end[i]}) with an offset inside of a "
                f"character, expected offsets in {kind.plural} between two; correct the offsets, or "
                "name their unit (--span-unit)",
            )
        found.append(at - base)
    return replace(spans, start=found[0], end=found[1])


def lengths_in(texts: Sequence[str], unit: str) -> Ints:
    """int64 [texts]: how long each is."""
    kind = UNITS[unit]
    if not kind.beyond or all(map(str.isascii, texts)):
        return np.array([len(text) for text in texts], np.int64)
    first, ends = _positions(texts, kind)
    return np.diff(ends[first])


def _positions(texts: Sequence[str], kind: Unit) -> tuple[Ints, Ints]:
    """(first character of each text in all of them end to end, and of the end; where each of these begins in units)."""
    codes: NDArray[np.uint32] = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")
    widths = np.ones(len(codes), np.int64)
    for code in kind.beyond:
        widths += codes >= code
    return offsets_of([len(text) for text in texts]), offsets_of(widths)


def check_texts(
    texts: Sequence[str] | None, spans: RawSpans, unit: str, track: str, decode: Decode | None = None
) -> None:
    """What stands at a span is its own text, if it has one, but for case, whitespace and the form of Unicode.

    Args:
        texts: Of the documents, None for tokens.
        spans: Offsets in `unit`, which may lie anywhere.
        unit: A key of UNITS.
        track: The name of theirs.
        decode: Gives the text of tokens; None where nothing does.

    Raises: BadRow with how many have another one, an example, and as what they would fit.
    """
    if spans.own is None:
        return
    given = [(i, own) for i, own in enumerate(spans.own) if own is not None]
    rows, starts, ends = spans.row.tolist(), spans.start.tolist(), spans.end.tolist()
    if given and unit == "token" and decode is None:
        raise BadRow(
            rows[given[0][0]],
            f"{track}: found spans with texts of their own, expected a tokenizer that says what their tokens are; "
            "name it in the build (--tokenizer), or ignore the texts (--ignore-column COLUMN.FIELD)",
        )
    wrong: dict[int, str | None] = {}
    for i, own in given:
        found = _cut(texts, unit, decode, rows[i], starts[i], ends[i])
        if not _is(found, own):
            wrong[i] = found
    if not wrong:
        return
    tried = [(rows[i], starts[i], ends[i], own) for i, own in [*((i, spans.own[i]) for i in wrong), *given][:_TRIED]]
    shown = {i: f"[{starts[i]}, {ends[i]}) {_quoted(found)}" for i, found in wrong.items()}
    first = min(wrong, key=lambda i: (rows[i], i))
    problem = (
        f"{track}: found {len(wrong):,} of {len(given):,} spans with another text, such as {shown[first]} for "
        f"{spans.own[first]!r:.{_SHOWN}}, expected the text that each says it has{_reading(texts, tried, unit, decode)}"
    )
    others = {rows[i]: f"{track}: found {shown[i]}, expected its own text {spans.own[i]!r:.{_SHOWN}}" for i in wrong}
    raise BadRow(rows[first], problem, others)


def _reading(
    texts: Sequence[str] | None, spans: Sequence[tuple[int, int, int, Any]], unit: str, decode: Decode | None
) -> str:
    """As what offsets would fit, as the end of a message."""
    for name in UNITS:
        if name != unit and all(_is(_cut(texts, name, decode, row, a, b), own) for row, a, b, own in spans):
            return f": offsets in {UNITS[name].plural}? (--span-unit {name})"
    for words, cut in _MISTAKES.items():
        if texts is not None and all(cut(texts[row], a, b) == own for row, a, b, own in spans):
            return f": {words}?"
    return "; they fit no unit: correct the offsets, or do not compare (--ignore-column COLUMN.FIELD)"


def _cut(texts: Sequence[str] | None, unit: str, decode: Decode | None, row: int, start: int, end: int) -> str | None:
    if unit == "token":
        return decode(row, start, end) if decode is not None else None
    return UNITS[unit].cut(texts[row], start, end) if texts is not None else None


def _is(found: str | None, own: str) -> bool:
    return found is not None and (found == own or _loosely(found) == _loosely(own))


def _loosely(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _quoted(found: str | None) -> str:
    return "beyond the text" if found is None else f"{found!r:.{_SHOWN}}"
