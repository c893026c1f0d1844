"""Windows, documents and spans against a brute-force reader, for any layout of shards, documents and records."""

import pytest

import conceptloader as cl
from tests.corpora.small import written


def test_split_shares_are_decimal_not_binary(tmp_path):
    ds = one_token_documents(tmp_path / "ds", 100)
    assert ds.split(0.0, 0.29) == (0, 29)  # 0.29 * 100 is 28.999999999999996 in binary floating point
    assert ds.split(0.29, 1) == (29, 100)


def one_token_documents(path, count):
    return cl.open_dataset(written(path, [([token],) for token in range(count)], mode="token-stream"))


def test_windows_over_a_token_range(tmp_path):
    ds = one_token_documents(tmp_path / "ds", 50)
    windows = ds.windows(8, token_range=(10, 30))
    assert len(windows) == 2
    assert windows[1]["tokens"].tolist() == list(range(18, 27))
    assert windows[-1]["tokens"].tolist() == windows[1]["tokens"].tolist()
    assert [w["tokens"][0] for w in windows.__getitems__([1, 0])] == [18, 10]
    for i in (2, -3):
        with pytest.raises(IndexError):
            windows[i]
