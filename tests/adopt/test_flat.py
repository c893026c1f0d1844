"""Flat token files against numpy, and which paths stand for which files."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import InputError
from conceptloader.ingest.adopt import source as adopt_source
from conceptloader.ingest.adopt.adopt import adopt
from tests.raises import raises


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=40),
    st.sampled_from(["uint8", "uint16", "uint32", "int32", "int64"]),
    st.booleans(),
    st.integers(1, 9),
)
def test_documents_end_with_the_named_token(tokens, dtype, head, piece):
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(adopt_source, "PIECE", piece)
        path = Path(directory) / "x.npy"
        array = np.array(tokens, dtype)
        np.save(path, array) if head else array.tofile(path)
        if 0 not in tokens:
            with raises(InputError, "x.npy", "no token 0 in 1 file"):
                adopt([path], Path(directory) / "ds", dtype=None if head else dtype, document_end=0)
            return
        adopt([path], Path(directory) / "ds", dtype=None if head else dtype, document_end=0)
        with cl.open_dataset(Path(directory) / "ds") as ds:
            assert ds.tokens(0, len(tokens)).tolist() == tokens
            starts = [0] + [i + 1 for i, token in enumerate(tokens[:-1]) if token == 0]
            assert [ds.document_range(d)[0] for d in range(ds.num_documents)] == starts
