"""How spans become tokens: the options that every way of attaching spans shares, and the version of their meaning."""

import os
from dataclasses import dataclass, fields
from typing import Any

from conceptloader.errors import ConfigError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.jsonfile import load_json

ALIGNS = ("first", "any", "majority")
EOS_SPANS = ("none", "last")
OVERLAPS = ("refuse", "levels", "union")

# 1: a token belonged to the span that holds its first character, white space or not, and eos to the last span.
# 2: `align` and `eos_span` decide. Spans that are given in version 1 are not; datasets without spans are of version 1.
VERSION = 2


@dataclass(frozen=True, kw_only=True)
class SpanRules:
    """Which tokens belong to which span.

    align: a token belongs to the span that holds its first character ("first"), any of its characters ("any"), or more
    than half of them ("majority"). White space at the ends of a token does not count, unless it has nothing else.
    eos_span: an eos that is appended belongs to no span ("none") or to the one that ends last ("last").
    overlap, levels: see `place.overlap.resolve`. max_lost_spans: which part of a track's spans may be left without a
    token, in [0, 1].
    """

    align: str = "first"
    eos_span: str = "none"
    overlap: str = "refuse"
    levels: int = 3
    max_lost_spans: float = 0.01

    @property
    def rules(self) -> "SpanRules":
        """These options without those of a subclass: small and picklable."""
        return SpanRules(**{field.name: getattr(self, field.name) for field in fields(SpanRules)})

    def check_rules(self) -> None:
        """Raises: ConfigError."""
        for name, known in (("align", ALIGNS), ("eos_span", EOS_SPANS), ("overlap", OVERLAPS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}: found {getattr(self, name)!r}, expected one of {', '.join(known)}")
        if self.overlap == "levels" and not 1 <= self.levels <= fmt.MAX_TRACKS:
            raise ConfigError(f"levels: found {self.levels}, expected 1 to {fmt.MAX_TRACKS}")
        check_fraction(self.max_lost_spans)

    def to_json(self, spans: bool = True) -> dict[str, Any]:
        """What decides the result; spans: whether there are any."""
        placing = {"version": VERSION, "align": self.align, "eos_span": self.eos_span} if spans else {"version": 1}
        return {**placing, "overlap": self.overlap, "levels": self.levels if self.overlap == "levels" else 1}


def check_fraction(value: float) -> None:
    """Raises: ConfigError if `value` is no `max_lost_spans`."""
    if not 0 <= value <= 1:
        raise ConfigError(f"max_lost_spans: found {value}, expected a fraction from 0 to 1")


def refuse_earlier_rules(path: str) -> None:
    """What was begun in the directory `path`, if anything, has spans of today's version.

    Raises: ConfigError for a build, finished or not, whose spans were given to tokens by other rules.
    """
    file = os.path.join(path, fmt.BUILD)
    if not os.path.exists(file):
        return
    ingest = load_json(file).take("options", dict).get("extra", {}).get("ingest", {})
    if ingest.get("version") == 1 and ingest.get("columns", {}).get("tracks"):
        finished = os.path.exists(os.path.join(path, fmt.MANIFEST))
        raise ConfigError(
            f"{path}: found a {'dataset' if finished else 'build'} of an earlier version of conceptloader, which gave "
            "tokens to spans by other rules (the first character of a token counted even if it was white space, and "
            "eos belonged to the last span), expected today's rules (--align, --eos-span); "
            + ("it can be used as it is: " if finished else "finish it with that version, or ")
            + "build into another directory; nothing was changed"
        )
