"""From spans in characters to spans in tokens: which tokens belong to a span, for a whole batch at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.ingest.records.batch import BadRow, RawSpans

_SPACES = [code for code in range(0x3001) if chr(code).isspace()]  # there is none beyond
_IS_SPACE = np.zeros(0x3002, bool)  # by code point, the last entry for all that are larger
_IS_SPACE[_SPACES] = True


@dataclass(frozen=True)
class Places:
    """Where the tokens of a batch stand in its texts, which lie end to end with one more character after each.

    base: int64 [documents + 1], where each text begins. lengths: characters of each. first: int64 [documents + 1],
    offsets of their tokens. start, end: int64 [tokens], not decreasing: the characters of each token that count, at
    least one: without the whitespace at its ends, unless it has nothing else.
    """

    base: Ints
    lengths: Ints
    first: Ints
    start: Ints
    end: Ints

    def tokens_of(self, spans: RawSpans, align: str) -> tuple[Ints, Ints]:
        """First tokens and ends, within their documents, of spans in characters; align: see `SpanAlignment`.

        A span without a token has an end that is not above its first.
        """
        begin, stop = spans.start + self.base[spans.row], spans.end + self.base[spans.row]
        if align == "first":
            low, high = np.searchsorted(self.start, begin), np.searchsorted(self.start, stop)
        elif align == "any":
            low, high = np.searchsorted(self.end, begin, "right"), np.searchsorted(self.start, stop)
            high[begin == stop] = 0  # an empty span inside of a token
        else:
            # More than half of a token lies in a span if the token's middle does, but for a short span within a token.
            middle = self.start + self.end
            low, high = np.searchsorted(middle, 2 * begin, "right"), np.searchsorted(middle, 2 * stop)
            some = np.flatnonzero(low < high)
            start, end = self.start[low[some]], self.end[low[some]]
            within = (start < begin[some]) & (end > stop[some]) & (2 * (stop - begin)[some] <= end - start)
            high[some[within]] = 0
        shift = self.first[spans.row]
        return low - shift, high - shift


def find_places(texts: Sequence[str], tokens: Ints, places: Ints) -> Places:
    """The places of the tokens with the offsets `tokens`, as `TextTokenizer.encode` gives them.

    Raises: BadRow if a token begins or ends before the one before it.
    """
    lengths = np.array([len(text) for text in texts], np.int64)
    base = offsets_of(lengths + 1)
    shift = np.repeat(base[:-1], np.diff(tokens))
    start = places[:, 0] + shift
    end = np.maximum(places[:, 1] + shift, start + 1)  # a token of no character stands at the next one
    space = _spaces(texts)
    words = offsets_of(~space)  # characters that are none, before each
    some = words[end] > words[start]
    leading, trailing = np.flatnonzero(some & space[start]), np.flatnonzero(some & space[end - 1])
    while len(leading):  # few have more than one
        start[leading] += 1
        leading = leading[space[start[leading]]]
    while len(trailing):
        end[trailing] -= 1
        trailing = trailing[space[end[trailing] - 1]]
    back = (start[1:] < start[:-1]) | (end[1:] < end[:-1])
    if back.any():
        raise BadRow(
            int(np.searchsorted(tokens, np.argmax(back) + 1, "right")) - 1,
            "found a token that begins before the one before it, expected a tokenizer that keeps the order of the "
            "text; pass another --tokenizer, or tokenize first and give spans in tokens",
        )
    return Places(base, lengths, tokens, start, end)


def _spaces(texts: Sequence[str]) -> NDArray[np.bool_]:
    """Which characters of the texts, each followed by a NUL, are whitespace (as `str.isspace` has it)."""
    joined = "\0".join([*texts, ""])
    if joined.isascii():
        codes: NDArray[np.unsignedinteger] = np.frombuffer(joined.encode("ascii"), np.uint8)
    else:
        codes = np.frombuffer(joined.encode("utf-32-le"), "<u4")
    found: NDArray[np.bool_] = _IS_SPACE.take(codes, mode="clip")
    return found
