"""Flat token files against numpy, and which paths stand for which files."""

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
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


def test_bad_files(tmp_path):
    path, tokens = tmp_path / "x.npy", np.arange(5, dtype=np.uint16)

    def refused(found, **options):
        with raises(InputError, "x.npy", found):
            adopt([path], tmp_path / "ds", **options)

    np.save(path, tokens)
    refused("tokens of type u2 in its head", dtype="u4")
    path.write_bytes(path.read_bytes()[:-2])
    refused("136 bytes")
    for array, found in ((np.zeros((2, 3), np.uint16), "(2, 3)"), (np.zeros(3, ">u2"), ">u2"), (np.zeros(3), "<f8")):
        np.save(path, array)
        refused(found)
    path.write_bytes(b"\x93NUMPY\x01\x00\xff")
    refused("corrupt .npy head")


@pytest.mark.parametrize("kind", ["llm.c", "llm.c of 2024-08", "npz", "parquet", "gzip", "zstd", "megatron"])
def test_files_of_other_kinds_are_no_tokens(tmp_path, kind):
    tokens, path = np.arange(1000, dtype="<u2"), tmp_path / "x.bin"
    head = np.zeros(256, "<i4")
    head[0] = 20240801 if "08" in kind else 20240520
    if kind == "npz":
        np.savez(path.with_suffix(".npz"), a=tokens)
        path = path.with_suffix(".npz")
    elif kind == "parquet":
        pq.write_table(pa.table({"tokens": tokens}), path)
    else:
        data = {"gzip": gzip.compress(bytes(tokens)), "zstd": zstandard.compress(bytes(tokens)), "megatron": b"MMIDIDX"}
        path.write_bytes(data.get(kind, head.tobytes() + bytes(tokens)))
    with raises(InputError, path, "a file of another kind", "tokens and nothing else"):
        adopt([path], tmp_path / "ds", dtype="uint8")
