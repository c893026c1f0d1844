"""What reading is asked for: windows of a range, shares of a split, arguments out of range, copies for processes."""

import pickle
import re

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.format.read.files import Files
from conceptloader.storage.handles import Handles
from conceptloader.storage.source import LocalFiles
from tests.corpora.small import written
from tests.raises import cells


def test_windows_and_splits(tmp_path):
    ds = cl.open_dataset(written(tmp_path / "ds", [([token],) for token in range(100)], mode="token-stream"))
    windows = ds.windows(8, token_range=(10, 30))
    assert len(windows) == 2
    assert windows[1]["tokens"].tolist() == windows[-1]["tokens"].tolist() == list(range(18, 27))
    assert [w["tokens"][0] for w in windows.__getitems__([1, 0])] == [18, 10]
    for i in (2, -3):
        with pytest.raises(IndexError):
            windows[i]
    assert ds.split(0.0, 0.29) == (0, 29)  # 0.29 * 100 is 28.999999999999996 in binary floating point
    assert ds.split(0.29, 1) == (29, 100)


OUTSIDE = """
windows(24) | seq_len: found 24, expected at most 23: | has 24 in this range; pass a smaller
windows(4, token_range=(0, 25)) | token_range: found [0, 25), expected | <= 24
windows(4, tracks=["concept"]) | found no track 'concept', expected one of ['concepts', 'sou | -
windows(4, tracks="concepts") | tracks: found the string 'concepts' | -
tokens(-1, 1) | found token range [-1, 1) | -
tokens(0, 25) | found token range [0, 25), expected | <= 24
document_range(4) | found document 4, expected a number from 0 to 3 | -
split(0.5, 0.5) | split: found [0.5, 0.5], expected 0 <= a < b <= 1 | -
split(float("nan"), 1) | split: found | -
split(0.5, 0.6) | split: found no start of a document in [0.5, 0.6] | -
"""


@pytest.mark.parametrize(("call", "found", "expected"), cells(OUTSIDE))
def test_arguments_out_of_range(dataset, call, found, expected):
    with pytest.raises(ConfigError, match=f"{re.escape(found)}.*{re.escape(expected)}"):
        eval(f"dataset.{call}")


def test_windows_of_documents_are_refused(tmp_path):
    ds = cl.open_dataset(written(tmp_path / "ds", [([1, 2, 3],)], mode="document"))
    with pytest.raises(ConfigError, match=r"mode: found document, expected a stream; use Dataset.documents\(\)"):
        ds.windows(1)


def test_pickling_keeps_the_options(dataset, tmp_path):
    ds = cl.open_dataset(dataset.path, roots=[tmp_path], verify_files=False)
    again = pickle.loads(pickle.dumps(ds))
    assert again.__reduce__() == ds.__reduce__()
    assert again.stream_fingerprint == ds.stream_fingerprint
    assert pickle.loads(pickle.dumps(ds.windows(5)))[1]["tokens"].tolist() == ds.tokens(5, 11).tolist()


def test_no_more_files_stay_open_than_may(dataset):
    wanted, handles = dataset.tokens(0, dataset.num_tokens).tolist(), Handles(2)
    dataset.files = Files(dataset.manifest, dataset.files.roots, LocalFiles(handles=handles))
    assert dataset.read(0, dataset.num_tokens, sorted(dataset.tracks))["tokens"].tolist() == wanted
    assert handles.count <= 2
    dataset.close()
    assert handles.count == 0
