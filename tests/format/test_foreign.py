"""What the format promises of token files of other libraries. tests/adopt shows that they are read right."""

import os
from dataclasses import replace

import numpy as np

import conceptloader as cl
from conceptloader.errors import FormatError
from conceptloader.format.tools.verify import verify
from conceptloader.format.write.finalize import write_manifest
from conceptloader.ingest.adopt.adopt import adopt
from tests.faults.test_identity import unsampled
from tests.hostile.test_attacks import edit
from tests.raises import raises

LARGE = 20_000
"""Tokens of a file that is not read whole when it is adopted."""


def adopted(root, count=1, tokens=12):
    """`count` flat token files of 12 tokens each, and a dataset over them."""
    root.mkdir(parents=True, exist_ok=True)
    files = [root / f"{number}.bin" for number in range(count)]
    for number, file in enumerate(files):
        file.write_bytes((np.arange(tokens, dtype="<u2") + 100 * number).tobytes())
    adopt(files, root / "ds", dtype="uint16")
    return root / "ds"


def test_nothing_is_copied_and_the_sidecar_takes_the_checksums(tmp_path):
    path = adopted(tmp_path, 2, LARGE)
    assert os.listdir(path) == ["manifest.json"]
    ds = cl.open_dataset(path)
    assert ds.tokens(LARGE - 2, LARGE + 2).tolist() == [LARGE - 2, LARGE - 1, 100, 101]
    before = ds.stream_fingerprint
    os.utime(tmp_path / "0.bin", ns=(1, 1))  # times identify nothing
    assert verify(path, full=True, write_checksums=False) == []
    assert os.listdir(path) == ["manifest.json"]
    assert verify(path, full=True) == []
    assert sorted(os.listdir(path)) == ["checksums.json", "manifest.json"]
    assert verify(path, full=True) == []
    assert cl.open_dataset(path).stream_fingerprint == before

    file = tmp_path / "1.bin"
    times = file.stat()
    data = bytearray(file.read_bytes())
    data[unsampled(len(data))] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert verify(path) == []  # same size, time and sample: only reading tells
    (problem,) = verify(path, full=True)
    assert (problem.file, problem.shard, problem.tokens) == (str(file), 1, (LARGE, 2 * LARGE))


def test_a_foreign_file_that_changes_later_is_refused(tmp_path):
    """Also by its time, where the manifest has one."""
    path = adopted(tmp_path)
    manifest = cl.open_dataset(path).manifest
    (entry,) = manifest.shards.foreign
    shards = replace(manifest.shards, foreign=[replace(entry, mtime_ns=2)])
    write_manifest(replace(manifest, shards=shards), str(path))
    os.utime(tmp_path / "0.bin", ns=(1, 1))
    with raises(FormatError, "0.bin", "a modification time of 1 ns"):
        cl.open_dataset(path).tokens(0, 1)
    (problem,) = verify(path)
    assert "modification time" in problem.message
    (tmp_path / "0.bin").write_bytes(bytes(26))
    with raises(FormatError, "0.bin", "26 bytes", "24"):
        cl.open_dataset(path).tokens(0, 1)
    (tmp_path / "0.bin").unlink()
    assert [problem.file for problem in verify(path)] == [str(tmp_path / "0.bin")]


def test_tokens_of_a_file_without_checksum_are_below_the_vocabulary_size(tmp_path):
    path = adopted(tmp_path, tokens=LARGE)
    edit(path, "tokenizer", value={"name": "t", "vocab_size": LARGE - 1, "eos_id": None})
    (problem,) = verify(path, full=True)
    assert f"found {LARGE - 1}, expected ids in [0, {LARGE - 1})" in problem.message
    assert not (path / "checksums.json").exists()
