"""Windows, documents and spans against a brute-force reader, for any layout of shards, documents and records."""

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
import conceptloader.errors as cl_errors
from tests.corpora.drawn import Corpus, corpora, expected_documents, expected_spans, explain, found_spans


def check_range(ds: cl.Dataset, corpus: Corpus, sample: dict, start: int, stop: int) -> None:
    tokens = explain(corpus)
    assert sample["tokens"].dtype == np.int64
    assert sample["tokens"].tolist() == [t.token for t in tokens[start:stop]]
    assert sample["weight"].tolist() == [t.token / 2 for t in tokens[start:stop]]
    for track in corpus.tracks:
        expected = expected_spans(tokens, track, start, stop)
        assert found_spans(sample[track]) == expected
        assert found_spans(ds.spans(track, start, stop)) == expected
        values, offsets = sample[track].values, sample[track].offsets
        assert [tuple(values[a:b].tolist()) for a, b in pairwise(offsets)] == [run[4] for run in expected]


@settings(max_examples=60)
@given(corpora(), st.sampled_from(["dense", "spans", "auto"]), st.sampled_from([1, 2, 3, 8, 2048]), st.data())
def test_windows_equal_brute_force(corpus: Corpus, encoding: str, block_tokens: int, data: st.DataObject) -> None:
    n = len(corpus.tokens())
    seq_len = data.draw(st.integers(1, n - 1), "seq_len")
    with tempfile.TemporaryDirectory() as directory:
        ds = corpus.write(Path(directory) / "ds", encoding, block_tokens, data.draw(st.sampled_from(["u2", "u4"])))
        with ds:
            windows = ds.windows(seq_len)
            assert len(windows) == (n - 1) // seq_len
            for i, sample in enumerate(windows):
                start, stop = i * seq_len, i * seq_len + seq_len + 1
                check_range(ds, corpus, sample, start, stop)
                found = list(zip(sample["documents"].first.tolist(), sample["documents"].ids.tolist(), strict=True))
                assert found == expected_documents(explain(corpus), start, stop)


@settings(max_examples=30)
@given(corpora(), st.sampled_from(["dense", "spans"]), st.data())
def test_documents_and_ranges_equal_brute_force(corpus: Corpus, encoding: str, data: st.DataObject) -> None:
    n = len(corpus.tokens())
    documents = [document for shard in corpus.shards for document in shard.documents]
    with tempfile.TemporaryDirectory() as directory, corpus.write(Path(directory) / "ds", encoding) as ds:
        view = ds.documents()
        assert len(view) == ds.num_documents == len(documents)
        start = 0
        for number, document in enumerate(documents):
            assert ds.document_range(number) == (start, start + len(document.tokens))
            check_range(ds, corpus, view[number], start, start + len(document.tokens))
            start += len(document.tokens)
        a, b = sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n))))
        assert ds.tokens(a, b).tolist() == corpus.tokens()[a:b]
        assert ds.fields(a, b)["weight"].tolist() == [token / 2 for token in corpus.tokens()[a:b]]


@settings(max_examples=30)
@given(corpora())
def test_encodings_share_the_stream_fingerprint(corpus: Corpus) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        dense, spans, automatic = (corpus.write(root / name, name) for name in ("dense", "spans", "auto"))
        bare = Corpus([], corpus.shards)
        for shard in corpus.shards:
            shard.shared = {}
            for document in shard.documents:
                document.spans = {}
        tokens_only = bare.write(root / "bare", "auto")
        fingerprints = {ds.stream_fingerprint for ds in (dense, spans, automatic, tokens_only)}
        assert len(fingerprints) == 1
        assert dense.tracks_fingerprint != spans.tracks_fingerprint != tokens_only.tracks_fingerprint


@settings(max_examples=30)
@given(corpora(tracks=("concepts",)), st.sampled_from(["dense", "spans"]))
def test_the_manifest_knows_the_largest_number_of_spans(corpus: Corpus, encoding: str) -> None:
    """Exactly, for windows of 2**k tokens at any position, across shard borders too; a bound for other lengths."""
    tokens = explain(corpus)
    with tempfile.TemporaryDirectory() as directory, corpus.write(Path(directory) / "ds", encoding) as ds:
        track = ds.tracks["concepts"]
    for length in range(1, len(tokens) + 1):
        most = max(len(expected_spans(tokens, "concepts", t, t + length)) for t in range(len(tokens) - length + 1))
        if length & (length - 1) == 0:
            assert track.spans_in(length) == most
        assert track.spans_in(length) >= most
    largest = max((len(token.spans["concepts"][1]) for token in tokens if token.spans["concepts"]), default=0)
    assert track.max_items is not None
    assert track.max_items >= largest


@settings(max_examples=40)
@given(corpora(tracks=()), st.floats(0, 1), st.floats(0, 1))
def test_splits_meet_and_respect_documents(corpus: Corpus, x: float, y: float) -> None:
    tokens = explain(corpus)
    x, y = sorted((x, y))
    with tempfile.TemporaryDirectory() as directory, corpus.write(Path(directory) / "ds", "auto") as ds:
        pieces = []
        for a, b in ((0.0, x), (x, y), (y, 1.0)):
            try:
                pieces.append(ds.split(a, b))
            except cl_errors.ConfigError:
                continue
    assert [pieces[0][0], pieces[-1][1]] == [0, len(tokens)]
    for (_, stop), (start, _) in pairwise(pieces):
        assert stop == start
        assert tokens[start].first == start


def test_split_shares_are_decimal_not_binary(tmp_path: Path) -> None:
    ds = one_token_documents(tmp_path / "ds", 100)
    assert ds.split(0.0, 0.29) == (0, 29)  # 0.29 * 100 is 28.999999999999996 in binary floating point
    assert ds.split(0.29, 1) == (29, 100)


def one_token_documents(path: Path, count: int) -> cl.Dataset:
    build = cl.create_build(path, cl.BuildOptions(mode="token-stream"))
    with build.shard(0) as writer:
        for token in range(count):
            writer.add_document([token])
    cl.finalize(path)
    return cl.open_dataset(path)


def test_windows_over_a_token_range(tmp_path: Path) -> None:
    ds = one_token_documents(tmp_path / "ds", 50)
    windows = ds.windows(8, token_range=(10, 30))
    assert len(windows) == 2
    assert windows[1]["tokens"].tolist() == list(range(18, 27))
    assert windows[-1]["tokens"].tolist() == windows[1]["tokens"].tolist()
    assert [w["tokens"][0] for w in windows.__getitems__([1, 0])] == [18, 10]
    for i in (2, -3):
        with pytest.raises(IndexError):
            windows[i]
