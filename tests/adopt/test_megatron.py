"""Megatron's .bin/.idx through our reader against megatron-core's own."""

import ast
import os
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import IndexedDataset

import conceptloader as cl
from conceptloader.errors import InputError
from conceptloader.format.tools.verify import verify
from conceptloader.ingest.adopt import source as adopt_source
from conceptloader.ingest.adopt.adopt import adopt
from tests.corpora.token_files import write_megatron as write
from tests.raises import cells, raises

TYPES = [np.uint8, np.uint16, np.int32, np.int64]


@settings(max_examples=25)
@given(st.data())
def test_equals_indexed_dataset(data):
    sequence = st.lists(st.integers(0, 120), max_size=6)
    document = st.lists(sequence, max_size=3)
    corpora = data.draw(st.lists(st.lists(document, min_size=1, max_size=8), min_size=1, max_size=3))
    if not any(token for corpus in corpora for item in corpus for part in item for token in part):
        corpora[0].append([[1, 2, 3]])
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(adopt_source, "PIECE", data.draw(st.integers(1, 9), "piece"))
        tokens = []
        starts = []
        paths = []
        for number, corpus in enumerate(corpora):
            prefix = write(Path(directory) / f"c{number}", corpus, data.draw(st.sampled_from(TYPES)))
            paths.append(prefix + data.draw(st.sampled_from(["", ".bin", ".idx"])))
            theirs = IndexedDataset(prefix, mmap=False)
            ends = np.cumsum([0, *theirs.sequence_lengths])
            starts += (len(tokens) + ends[theirs.document_indices[:-1]]).tolist()
            for i in range(len(theirs)):
                tokens += theirs[i].tolist()
        adopt(paths, Path(directory) / "ds")
        with cl.open_dataset(Path(directory) / "ds") as ds:
            assert ds.num_tokens == len(tokens)
            assert [ds.document_range(d) for d in range(ds.num_documents)] == list(
                zip(starts, [*starts[1:], len(tokens)], strict=True)
            )
            a, b = sorted((data.draw(st.integers(0, len(tokens))), data.draw(st.integers(0, len(tokens)))))
            assert ds.tokens(a, b).tolist() == tokens[a:b]
            if len(tokens) > 1:
                for i, window in enumerate(ds.windows(seq_len := data.draw(st.integers(1, len(tokens) - 1)))):
                    assert window["tokens"].tolist() == tokens[i * seq_len : i * seq_len + seq_len + 1]


def test_changes_are_found_by_verify(tmp_path):
    prefix = write(tmp_path / "x", [[[1, 2, 3]], [[4]]])
    adopt([prefix], tmp_path / "ds")
    tokens, index = Path(prefix + ".bin"), Path(prefix + ".idx")
    assert verify(tmp_path / "ds") == verify(tmp_path / "ds", full=True) == []
    damage_quietly(tokens, 2, b"\x09")
    for full in (False, True):
        (problem,) = verify(tmp_path / "ds", full=full)
        assert (problem.file, problem.shard, problem.tokens) == (str(tokens), 0, (0, 4))
    damage_quietly(tokens, 2, b"\x02")
    damage(index, 34, b"\x02")
    (problem,) = verify(tmp_path / "ds", full=True)
    assert problem.file == str(index)


def damage_quietly(path, offset, data):
    """As a failing disk does it: size and time stay."""
    before = path.stat()
    damage(path, offset, data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def damage(path, offset, data):
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(data)] = data
    path.write_bytes(raw)


# The index of the corpus below: head 34, 3 lengths from 34, 3 pointers from 46, 4 document entries from 70, end 102.
CORPUS = [[[1, 2], [3]], [], [[4, 5, 6]]]
PATCHES = """
0 | 9s | b"TNTIDX" | a file that begins with
9 | Q | 2 | version 2
17 | B | 7 | tokens of type float32
17 | B | 6 | tokens of type float64
17 | B | 99 | tokens of type code 99
17 | B | 4 | sequence 2 of 3 tokens at byte 6
18 | Q | 0x1000000000000000 | 102 bytes
34 | i | -2 | sequence 0 of -2 tokens
42 | i | -1 | sequence 2 of -1 tokens
54 | q | 2 | sequence 1 of 1 tokens at byte 2
94 | q | 4 | documents that end at sequence 4, past the end
94 | q | 2 | documents that end at sequence 2
78 | q | 9 | a document, 1, that begins at sequence 9
86 | q | 1 | a document, 2, that begins at sequence 1
70 | q | 1 | a document, 0, that begins at sequence 1
"""  # at a byte of the index, a value; what is found


def test_bad_files(tmp_path):
    prefix = write(tmp_path / "x", CORPUS)
    tokens, index = Path(prefix + ".bin"), Path(prefix + ".idx")
    whole, data = index.read_bytes(), tokens.read_bytes()

    def refused(where, found):
        with raises(InputError, where, found):
            adopt([prefix], tmp_path / "ds")
        assert not (tmp_path / "ds").exists()

    for at, kind, value, found in cells(PATCHES):
        index.write_bytes(whole)
        damage(index, int(at), struct.pack("<" + kind, ast.literal_eval(value)))
        refused("x.idx", found)
    for size, found in ((20, "20 bytes"), (34, "34 bytes"), (99, "99 bytes")):
        index.write_bytes(whole[:size])
        refused("x.idx", found)
    index.write_bytes(whole + bytes(3))
    refused("x.idx", "a mode for each sequence")
    index.write_bytes(whole[:26] + bytes(8) + whole[34:70])
    refused("x.idx", "no document entry")
    index.write_bytes(whole)
    tokens.write_bytes(data[:-1])
    refused("x.bin", "11 bytes")
    tokens.unlink()
    refused("x.bin", "no readable file")
