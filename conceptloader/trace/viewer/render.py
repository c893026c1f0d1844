"""HTML that notebooks and pages share: text that is safe, tables, windows with their spans, a mixture over a run."""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

from conceptloader.base.terminal import printable
from conceptloader.trace.viewer.windows import Span, Window

_LINES = 6  # levels of spans below the text
_TEXT = "font:13px/1.5 monospace;white-space:pre-wrap;overflow-wrap:anywhere;max-width:70em;margin:.4em 0"
_HEIGHT = 100  # of the picture of a mixture


class Html(str):
    """Text that is HTML already."""


def visible(text: object) -> str:
    """Text of a corpus as HTML that is this text and nothing else, controls and marks of direction as escapes."""
    return escape(printable(str(text), keep="\n\t"))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; integers with commas, `Html` as it is."""

    def shown(cell: object) -> str:
        return cell if isinstance(cell, Html) else f"{cell:,}" if isinstance(cell, int) else visible(cell)

    body = "".join("<tr>" + "".join(f"<td>{shown(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    names = "".join(f"<th>{visible(name)}</th>" for name in head)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def window_html(window: Window) -> str:
    """The texts of the tokens, with a line below for each span and one before a document; a legend."""
    texts, spans = window.texts, window.spans
    borders = sorted({0, len(texts), *window.begins, *(end for span in spans for end in (span.start, span.end))})
    depth = min(_LINES, 1 + max((span.level for span in spans), default=-1))
    hues = hues_of(spans)
    parts = []
    for start, stop in pairwise(borders):
        here = [span for span in spans if span.start <= start < span.end]
        lines = [
            f"linear-gradient({_colour(hues[_key(span)])} 0 0) 0 calc(100% - {3 * (depth - 1 - span.level)}px)"
            "/100% 2px no-repeat"
            for span in here
            if span.level < _LINES
        ]
        tint = f"hsl({hues[_key(here[-1])]} 65% 50%/.15)" if here else "none"
        style = f"padding-bottom:{1 + 3 * depth}px;background:{','.join([*lines, tint])}"
        style += ";border-left:3px double;padding-left:2px" * (start in window.begins)
        title = f' title="{visible(chr(10).join(map(str, here)))}"' if here else ""
        parts.append(f'<span style="{style}"{title}>{visible("".join(texts[start:stop]))}</span>')
    legend = [
        f'<span style="border-bottom:2px solid {_colour(hues[key])}">{visible(name)}</span>'
        for key, name in {_key(span): span.name for span in spans}.items()
    ]
    text = f'<div dir="auto" style="{_TEXT};line-height:calc(1.5em + {3 * depth}px)">{"".join(parts)}</div>'
    return text + f'<p style="font-size:90%">{" &nbsp; ".join(legend)}</p>'


def _drawn(width: int, height: int, shapes: str) -> str:
    size = f'viewBox="0 0 {width} {height}" height="{height}" preserveAspectRatio="none"'
    return f'<svg {size} style="display:block;width:100%;max-width:70em" role="img">{shapes}</svg>'


def _key(span: Span) -> tuple[str, object]:
    return span.track, span.concept if isinstance(span.concept, int) else ""


def hues_of(spans: Iterable[Span]) -> dict[tuple[str, object], int]:
    """A hue for each concept, its own one unless that is too near to one with more tokens."""
    tokens: Counter[tuple[str, object]] = Counter()
    for span in spans:
        tokens[_key(span)] += span.end - span.start
    found: dict[tuple[str, object], int] = {}
    for key, _ in tokens.most_common():
        number = key[1] if isinstance(key[1], int) else sum(map(ord, key[0]))
        hues = [_hue(number, k) for k in range(16)]
        far = (hue for hue in hues if all(24 <= (hue - one) % 360 <= 336 for one in found.values()))
        found[key] = next(far, hues[-1])
    return found


def _hue(number: int, other: int = 0) -> int:
    return round(number * 137.508 + 225 + 47 * other) % 360


def _colour(hue: int) -> str:
    return f"hsl({hue} 55% 52%)"


def mixture_html(names: Sequence[str], x: Sequence[int], counts: Sequence[Sequence[int]], ends: tuple[str, str]) -> str:
    """The shares of the datasets one above the other, between each two of the points x; below them their totals.

    counts: samples of each dataset before each point; ends: what is written at the first and the last.
    """
    drawn = [[after - before for before, after in zip(*two, strict=True)] for two in pairwise(counts)]
    totals = [sum(one) for one in zip(*drawn, strict=True)]
    below, shapes, legend = [0.0] * len(drawn), [], []
    for k, (name, total) in enumerate(zip(names, totals, strict=True)):
        above = [low + _HEIGHT * one[k] / (sum(one) or 1) for low, one in zip(below, drawn, strict=True)]
        there = "".join(f"V{high:.4g}H{end - x[0]}" for high, end in zip(above, x[1:], strict=True))
        back = "".join(f"V{low:.4g}H{end - x[0]}" for low, end in zip(below[::-1], x[-2::-1], strict=True))
        shapes.append(
            f'<path fill="{_colour(_hue(k))}" d="M0 {below[0]:.4g}{there}{back}Z"><title>{visible(name)}</title></path>'
        )
        legend.append(
            f'<span style="border-bottom:2px solid {_colour(_hue(k))}">{visible(name)}</span> '
            f"{total / (sum(totals) or 1):.1%}"
        )
        below = above
    axis = "".join(f"<span>{end}</span>" for end in ends)
    axis = f'<p style="display:flex;justify-content:space-between;max-width:70em;margin:0">{axis}</p>'
    return _drawn(x[-1] - x[0], _HEIGHT, "".join(shapes)) + axis + f"<p>{' &nbsp; '.join(legend)}</p>"
