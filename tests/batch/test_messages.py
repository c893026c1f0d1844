"""What kernels find wrong is said with the file, the place, what was found and what was expected."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import FormatError
from conceptloader.format.spec.layout import DAMAGED
from conceptloader.loader.batch.open import open_reader
from tests.corpora.small import written
from tests.corruption.mutations import with_matching_manifest
from tests.raises import cells

SEQ_LEN, LIMIT = 5, 1 << 26


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two shards of three documents, whose records all differ: as windows with spans and dense, and as documents."""
    folder = tmp_path_factory.mktemp("whole")
    shards = [
        [
            (range(size), {"t": [(0, 3, [10 * shard + k, 7]), (3, size, [100 * shard + k])]})
            for k, size in enumerate((6, 6, 4))
        ]
        for shard in range(2)
    ]
    for name in ("spans", "dense", "document"):
        mode = "document" if name == "document" else "stream-with-metadata"
        encoding = "dense" if name == "dense" else "spans"
        written(folder / name, *shards, mode=mode, tracks={"t": {"encoding": encoding}}, block_tokens=4)
    return folder


def error_of(path):
    config = {
        "seq_len": SEQ_LEN, "order": "sequential", "datasets": {"a": {"path": str(path)}}, "tracks": {"t": {}},
        "outputs": {"document_ids": True}, "loader": {"verify_files": False},
    }  # fmt: skip
    reader = open_reader(cl.open_blend(config), dp_rank=3)
    with pytest.raises(FormatError) as raised:
        reader.read(np.array([4], np.uint64))
    return str(raised.value)


# Sample 4 reads tokens [4, 10) of the second shard, sample 6 of the documents its second one.
CASES = """
document | documents.bin | 8 | u8 | 13 | document 1 of shard 1 at tokens [13, 12) | 16
spans | documents.bin | 40 | u8 | 9 | block table entries 9 and 2, from block 1 on | ascending numbers below 3
spans | documents.bin | 0 | u8 | 5 | position 5 in entry 0 for tokens from 4 on | a position from 0 to 4
spans | documents.bin | 0 | u8 | 18446744073709551614 | position 18446744073709551614 in entry 0 | a position from
spans | documents.bin | 16 | u8 | 3 | position 3 in entry 2 after 6 | non-decreasing positions in [0, 16]
spans | t.spans | 12 | u8 | 18446744073709551615 | position 18446744073709551615 in entry 1 | a position
spans | t.spans | 24 | u8 | 3 | position 3 in entry 2 after 3 | ascending positions in [0, 16]
spans | documents.bin | 56 | u8 | 0 | position 6 in entry 1 for tokens up to 10 | a position of 10 or more
spans | t.spans | 20 | u4 | 77 | record 77 of track t at token 20 of the dataset | numbers below 6
dense | stream.bin | 44 | u4 | 77 | record 77 of track t at token 21 of the dataset | numbers below 6
spans | t.index | 8 | u8 | 9223372036854775809 | offset 9223372036854775809 in entry 1 | non-decreasing offsets
spans | t.index | 24 | u8 | 37 | offset 37 in entry 3 of track t | non-decreasing offsets up to 36
spans | t.index | 24 | u8 | 2 | record 2 of track t at bytes [12, 2) | non-decreasing offsets up to 36
spans | t.index | 16 | u8 | 13 | 5 bytes as record 1 of track t | a list of concept ids, each of 4 bytes
"""
"""The dataset, its file, where in it, as what, what is written there, what is found, what was expected."""


@pytest.mark.parametrize(("name", "kind", "at", "dtype", "value", "found", "expected"), cells(CASES))
def test_what_is_wrong_in_a_file_is_said(whole, tmp_path, name, kind, at, dtype, value, found, expected):
    path = Path(shutil.copytree(whole / name, tmp_path / "ds"))
    file = path / f"00001.{kind}"
    with file.open("r+b") as opened:
        opened.seek(int(at))
        opened.write(np.array(int(value), dtype).tobytes())
    error = error_of(path)
    assert error.startswith(f"sample 4, dp_rank 3: {file}: found {found}")
    assert expected in error.partition(", expected ")[2]
    assert error.endswith(f"; {DAMAGED}")


def test_a_record_too_large_for_any(whole, tmp_path):
    path = Path(shutil.copytree(whole / "spans", tmp_path / "ds"))
    offsets = np.fromfile(path / "00001.t.index", "<u8")
    offsets[2:] += LIMIT + 4
    data = (path / "00001.t.data").read_bytes() + bytes(LIMIT + 4)
    changed = {"00001.t.index": offsets.tobytes(), "00001.t.data": data}
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    for file, content in with_matching_manifest(files, changed).items():
        (path / file).write_bytes(content)
    found = f"found {LIMIT + 8} bytes as record 1 of track t, expected at most {LIMIT} bytes"
    assert f"{path / '00001.t.index'}: {found}" in error_of(path)
