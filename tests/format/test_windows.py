"""Windows, documents and spans against a brute-force reader, for any layout of shards, documents and records."""

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
import conceptloader.errors as cl_errors
from tests.corpora.drawn import Corpus, corpora, explain
from tests.corpora.small import written


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
    return cl.open_dataset(written(path, [([token],) for token in range(count)], mode="token-stream"))


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
