"""Damaged shard files met while reading: an error that names the file, never another exception, never a huge read."""

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.corpora.small import small_corpus


@pytest.fixture(params=["dense", "spans"])
def dataset(request, tmp_path):
    """The small corpus in either encoding, opened by a reader that does not look at files before it reads them: what
    is damaged where no sample looks."""
    small_corpus().write(tmp_path / "ds", request.param)
    with cl.open_dataset(tmp_path / "ds", verify_files=False) as ds:
        yield ds


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ds: ds.windows(24), r"seq_len: found 24, expected at most 23: .* has 24 in this range; pass a smaller"),
        (lambda ds: ds.windows(4, token_range=(0, 25)), r"token_range: found \[0, 25\), expected .* <= 24"),
        (lambda ds: ds.windows(4, tracks=["concept"]), r"found no track 'concept', expected one of \['concepts', 'sou"),
        (lambda ds: ds.windows(4, tracks="concepts"), "tracks: found the string 'concepts'"),
        (lambda ds: ds.tokens(-1, 1), r"found token range \[-1, 1\)"),
        (lambda ds: ds.tokens(0, 25), r"found token range \[0, 25\), expected .* <= 24"),
        (lambda ds: ds.document_range(4), r"found document 4, expected a number from 0 to 3"),
        (lambda ds: ds.split(0.5, 0.5), r"split: found \[0.5, 0.5\], expected 0 <= a < b <= 1"),
        (lambda ds: ds.split(float("nan"), 1), "split: found"),
        (lambda ds: ds.split(0.5, 0.6), r"split: found no start of a document in \[0.5, 0.6\]"),
    ],
)
def test_arguments_out_of_range(dataset, call, message):
    with pytest.raises(ConfigError, match=message):
        call(dataset)
