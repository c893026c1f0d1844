"""What kernels find wrong is said with the file, the place, what was found and what was expected."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.config import Outputs
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.spec.layout import DAMAGED
from conceptloader.kernels import records
from conceptloader.loader.batch.messages import WORDS
from conceptloader.loader.batch.open import decide_layout, open_reader
from conceptloader.loader.batch.reader import BatchReader
from tests.batch.cases import make_view, read
from tests.corpora.small import written
from tests.corruption.mutations import with_matching_manifest

DOCUMENTS, TOKENS, SEQ_LEN, BLOCK = (6, 6, 4), 16, 5, 4  # of a shard


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two shards of three documents, whose records all differ: as windows with spans and dense, and as documents."""
    folder = tmp_path_factory.mktemp("whole")
    shards = [
        [
            (range(size), {"t": [(0, 3, [10 * shard + k, 7]), (3, size, [100 * shard + k])]})
            for k, size in enumerate(DOCUMENTS)
        ]
        for shard in range(2)
    ]
    for name in ("spans", "dense", "document"):
        mode = "document" if name == "document" else "stream-with-metadata"
        encoding = "dense" if name == "dense" else "spans"
        written(folder / name, *shards, mode=mode, tracks={"t": {"encoding": encoding}}, block_tokens=BLOCK)
    return folder


def error_of(path, sample):
    config = {
        "seq_len": SEQ_LEN, "order": "sequential", "datasets": {"a": {"path": str(path)}}, "tracks": {"t": {}},
        "outputs": {"document_ids": True}, "loader": {"verify_files": False},
    }  # fmt: skip
    reader = open_reader(cl.open_blend(config), dp_rank=3)
    with pytest.raises(FormatError) as raised:
        reader.read(np.array([sample], np.uint64))
    return raised.value


INDEX, TABLE = 8, 8 * (len(DOCUMENTS) + 1)  # bytes of an entry; where the block table begins
# Sample 4 reads tokens [4, 10) of the second shard, sample 6 of the documents its second one.
CASES = {
    "document": ("document", "documents.bin", INDEX * 1, "u8", 13, "document 1 of shard 1 at tokens [13, 12)", "16"),
    "blocks": (
        "spans", "documents.bin", TABLE + 8, "u8", 9, "block table entries 9 and 2, from block 1 on",
        "ascending numbers below 3",
    ),
    "begins late": (
        "spans", "documents.bin", INDEX * 0, "u8", 5, "position 5 in entry 0 for tokens from 4 on",
        "a position from 0 to 4",
    ),
    "unsigned": (
        "spans", "documents.bin", INDEX * 0, "u8", 2**64 - 2, f"position {2**64 - 2} in entry 0 for tokens from 4 on",
        "a position from 0 to 4",
    ),
    "falls": (
        "spans", "documents.bin", INDEX * 2, "u8", 3, "position 3 in entry 2 after 6",
        "non-decreasing positions in [0, 16]",
    ),
    "falls, of spans": (
        "spans", "t.spans", 12 * 2, "u8", 3, "position 3 in entry 2 after 3", "ascending positions in [0, 16]",
    ),
    "ends early": (
        "spans", "documents.bin", TABLE + 8 * 3, "u8", 0, "position 6 in entry 1 for tokens up to 10",
        "a position of 10 or more",
    ),
    "record": (
        "spans", "t.spans", 12 + 8, "u4", 77, "record 77 of track t at token 20 of the dataset", "numbers below 6",
    ),
    "dense record": (
        "dense", "stream.bin", 8 * 5 + 4, "u4", 77, "record 77 of track t at token 21 of the dataset",
        "numbers below 6",
    ),
    "offset": (
        "spans", "t.index", INDEX * 1, "u8", 2**63 + 1, f"offset {2**63 + 1} in entry 1 of track t",
        "non-decreasing offsets up to 36",
    ),
    "offset beyond": (
        "spans", "t.index", INDEX * 3, "u8", 37, "offset 37 in entry 3 of track t", "non-decreasing offsets up to 36",
    ),
    "offsets": (
        "spans", "t.index", INDEX * 3, "u8", 2, "record 2 of track t at bytes [12, 2)",
        "non-decreasing offsets up to 36",
    ),
    "list": (
        "spans", "t.index", INDEX * 2, "u8", 13, "5 bytes as record 1 of track t",
        "a list of concept ids, each of 4 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_in_a_file_is_said(whole, tmp_path, case):
    name, kind, at, dtype, value, found, expected = CASES[case]
    path = Path(shutil.copytree(whole / name, tmp_path / "ds"))
    file = path / f"00001.{kind}"
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(np.array(value, dtype).tobytes())
    error = str(error_of(path, 4))
    assert error.startswith(f"sample 4, dp_rank 3: {file}: found {found}, expected ")
    assert expected in error
    assert error.endswith(f"; {DAMAGED}")


def test_a_record_too_large_for_any(whole, tmp_path):
    path = Path(shutil.copytree(whole / "spans", tmp_path / "ds"))
    offsets = np.fromfile(path / "00001.t.index", "<u8")
    offsets[2:] += records_limit() + 4
    data = (path / "00001.t.data").read_bytes() + bytes(records_limit() + 4)
    changed = {"00001.t.index": offsets.tobytes(), "00001.t.data": data}
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    for file, content in with_matching_manifest(files, changed).items():
        (path / file).write_bytes(content)
    error = str(error_of(path, 4))
    found = f"found {records_limit() + 8} bytes as record 1 of track t, expected at most {records_limit()} bytes"
    assert f"{path / '00001.t.index'}: {found}" in error


def records_limit():
    return 1 << 26


def test_a_window_that_the_member_does_not_have(whole):
    view = make_view("web", cl.open_dataset(whole / "spans"), 0, 0, 6, SEQ_LEN)
    with pytest.raises(ConfigError, match="dataset web: found sample 6 of it in the order, expected a number below 6"):
        read(BatchReader(None, [view], decide_layout([view], SEQ_LEN, Outputs())), 6)


def test_there_are_words_for_each_kind():
    """Also for those that only kernels with a mistake could come to."""
    assert sorted(WORDS) == [*range(int(records.ABSENT_MEMBER), int(records.NO_PLACE) + 1)]
