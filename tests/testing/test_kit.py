"""The made-up datasets are what they say."""

from pathlib import Path

from conceptloader import open_dataset
from conceptloader.testing import sample_corpus


def test_the_sample_corpus_is_text_with_spans_over_the_colors(tmp_path):
    path = sample_corpus(tmp_path / "data/corpus", documents=30)
    with open_dataset(path) as ds:
        spans = ds.spans("concepts", 0, ds.num_tokens)
        assert {bytes(ds.tokens(*span).astype("u1")) for span in zip(spans.start, spans.end, strict=True)} == {
            b"red", b"green", b"blue"
        }  # fmt: skip
        assert (ds.num_documents, ds.document_id(7)) == (30, "tin-7")
    before = Path(path, "manifest.json").read_bytes()
    assert sample_corpus(path) == path  # what is there stays
    assert Path(path, "manifest.json").read_bytes() == before
