"""Which tokens belong to a span: for each family of tokenizers, against a plain loop over the characters of a token."""

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from conceptloader.ingest.align.align import _spaces, find_places
from conceptloader.ingest.align.rules import ALIGNS
from conceptloader.ingest.records.batch import Ragged, RawSpans
from conceptloader.ingest.records.tokenizer import FileTokenizer
from tests.corpora.tokenizers import END, FAMILIES, definition

PIECES = [
    "red", " ", "  ", "the", "cat", "\n", "\t", "a", ".", ",", "größe", "😀", "😀😀", "e\u0301", "é", "ﬁ", "日本", "語",
    "\u3000", "\u200b", "<tag>", "İ", "Red", "Ω\u0323\u0301", " .",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@cache
def library(family):
    """What tells the whole place of each token: a post-processor could only take white space out of it."""
    content = json.loads(definition(family))
    return Tokenizer.from_str(json.dumps({**content, "post_processor": None}))


def characters_of(family, text):
    """(id, the characters that count) of each token, by the definition."""
    encoded = library(family).encode(text, add_special_tokens=False)
    found = []
    run = []
    for i, (name, (start, end)) in enumerate(zip(encoded.tokens, encoded.offsets, strict=True)):
        characters = list(range(start, max(end, start + 1)))
        if len(characters) > 1 and name.startswith("<0x"):  # one byte of several characters in a row
            first = i
            while first and encoded.offsets[first - 1] == (start, end) and encoded.tokens[first - 1].startswith("<0x"):
                first -= 1
            run = [bytes([int(one[3:5], 16)]) for one in encoded.tokens[first : i + 1]]
            characters = [start + sum(byte[0] & 0xC0 != 0x80 for byte in run) - 1]
        solid = [at for at in characters if not text[at : at + 1].isspace()]
        if solid:
            characters = list(range(solid[0], solid[-1] + 1))
        found.append((encoded.ids[i], characters))
    return found


def belongs(align, characters, start, end):
    held = [start <= at < end for at in characters]
    return {"first": held[0], "any": any(held), "majority": 2 * sum(held) > len(held)}[align]


def tokens_of(tokenizer, found, spans, align):
    """For each span (text, start, end) the numbers of its tokens, within its text."""
    tokens, places = tokenizer.encode(found, [True] * len(found))
    columns = [np.array([span[i] for span in spans], np.int64) for i in range(3)]
    raw = RawSpans(*columns, Ragged(np.empty(0, np.uint32), np.zeros(len(spans) + 1, np.int64)))
    low, high = find_places(found, tokens.offsets, places).tokens_of(raw, align)
    return [list(range(a, b)) for a, b in zip(low.tolist(), high.tolist(), strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(data=st.data(), found=st.lists(texts, min_size=1, max_size=3), align=st.sampled_from(ALIGNS))
def test_equals_a_loop_over_characters(family, data, found, align):
    tokenizer = FileTokenizer(definition(family), family, END)
    spans = []
    for row, text in enumerate(found):
        for _ in range(data.draw(st.integers(0, 4))):
            start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
            spans.append((row, start, end))
    expected = [characters_of(family, text) for text in found]
    tokens, _ = tokenizer.encode(found, [True] * len(found))
    assert tokens.values.tolist() == [number for one in expected for number, _ in one]
    assert tokens_of(tokenizer, found, spans, align) == [
        [i for i, (_, characters) in enumerate(expected[row]) if belongs(align, characters, start, end)]
        for row, start, end in spans
    ]


def test_white_space_is_what_python_calls_so():
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    assert _spaces([text]).tolist() == [*(one.isspace() for one in text), False]
