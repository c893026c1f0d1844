"""How spans become tokens: the options that every way of attaching spans shares, and the version of their meaning."""

from dataclasses import dataclass
from typing import Annotated, Any

from conceptloader.base.arguments import fraction, positive
from conceptloader.base.options import Options, option
from conceptloader.base.strict import within
from conceptloader.format.spec import layout as fmt

ALIGNS = ("first", "any", "majority")
OVERLAPS = ("error", "levels", "union")
SPAN_UNITS = ("character", "utf16", "byte", "token")

VERSION = 1
_SPANS = "spans"


@dataclass(frozen=True, kw_only=True)
class SpanAlignment(Options):
    """Which tokens belong to which span.

    Attributes:
        align: A token belongs to the span that holds its first character ("first"), any of its characters ("any"), or
            more than half of them ("majority"). Whitespace at the ends of a token does not count, unless it has
            nothing else.
        overlap: How overlapping spans of a track are resolved, see `align.overlap.resolve`.
        levels: How many spans may lie over each other, where overlapping ones are put on levels.
        max_unaligned_spans: Share of a track's spans that may contain no token, in [0, 1].
        span_unit: What starts and ends of spans count in the document: characters ("character", code points of
            Unicode), UTF-16 code units ("utf16", as JavaScript and Java do), bytes of UTF-8 ("byte") or "token"; by
            default characters of text, and tokens of documents that are tokenized already.
    """

    span_unit: str | None = option(
        "of start and end (default: character of text, token of tokens)", choices=SPAN_UNITS, group=_SPANS
    )
    align: str = option(
        "a token belongs to the span with its first character (default), any, or more than half of its characters",
        ALIGNS[0], choices=ALIGNS, group=_SPANS,
    )  # fmt: skip
    max_unaligned_spans: Annotated[float, within(0, 1)] = option(
        "share of a track's spans that may contain no token (default: 0.01)", 0.01, "FRACTION", fraction, group=_SPANS
    )
    overlap: str = option(
        "overlapping spans: error (default), one track per level, or segments with all concepts",
        OVERLAPS[0], choices=OVERLAPS, group=_SPANS,
    )  # fmt: skip
    levels: Annotated[int, within(1, fmt.MAX_TRACKS)] = option(
        "number of tracks for --overlap levels (default: 3)", 3, "N", positive, group=_SPANS
    )

    @property
    def depth(self) -> int:
        """How many levels a track has."""
        return self.levels if self.overlap == "levels" else 1

    def to_json(self) -> dict[str, Any]:
        """What determines the result, in the words of manifests, where an overlap that is an error is "refuse".

        But for the unit, of which what is read has a say. An eos that is appended belongs to no span.
        """
        placing = {"version": VERSION, "align": self.align, "eos_span": "none"}
        overlap = "refuse" if self.overlap == "error" else self.overlap
        return {**placing, "overlap": overlap, "levels": self.depth}
