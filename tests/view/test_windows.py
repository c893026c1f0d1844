"""Windows as they are shown: the text of each token, and spans as they nest."""

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.ingest.records.tokenizer import load_tokenizer
from conceptloader.trace.ranges import whole
from conceptloader.trace.viewer.windows import Reader, Span, nested, pieces
from tests.corpora.tokenizers import FAMILIES, definition

TEXTS = ["the red cat sat", "größer 😀 naïve café", "日本語 テキスト\u3000です", "a\n\n\tb  c", "😀😀😀", "ﬁne <tag> x"]


@pytest.mark.parametrize("family", ["bytes", *FAMILIES])
def test_pieces_are_the_text_of_the_tokens(family, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b"" if family == "bytes" else definition(family))
    tokenizer = load_tokenizer("bytes" if family == "bytes" else str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        ids = tokenizer.encode([text], [False])[0].values.tolist()
        found = pieces(tokenizer, ids)
        assert len(found) == len(ids)
        assert "".join(found) == tokenizer.decode(ids), text
    cut = tokenizer.encode(["日本語 😀"], [False])[0].values.tolist()
    for start in range(len(cut)):
        for stop in range(start, len(cut)):
            assert len(pieces(tokenizer, cut[start:stop])) == stop - start


def test_nested_spans_have_levels_of_their_own():
    rng = np.random.default_rng(0)
    for _ in range(200):
        starts = rng.integers(0, 40, 12)
        found = nested(Span(int(s), int(s + rng.integers(1, 12)), "t", k, "") for k, s in enumerate(starts))
        for token in range(60):
            here = [span.level for span in found if span.start <= token < span.end]
            assert len(here) == len(set(here))
        assert [span.start for span in found] == sorted(span.start for span in found)
    outer, inner = nested([Span(2, 4, "", 1, ""), Span(0, 9, "", 0, "")])
    assert (outer.concept, outer.level, inner.level) == (0, 0, 1)


def test_a_span_in_pieces_is_one_again(folder):
    """Overlapping spans are stored as runs with the union of their concepts."""
    dataset = cl.open_dataset(folder / "books")
    for number in range(0, 30, 3):
        window = Reader(dataset).read([whole(*dataset.document_range(number))])
        spans = {span.name: "".join(window.texts[span.start : span.end]) for span in window.spans}
        assert spans["animal"] == "bird"
        assert ("".join(window.texts).startswith(spans["clause"]), len(spans["clause"].split())) == (True, 8)
