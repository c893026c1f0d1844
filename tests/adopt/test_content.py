"""What is in adopted files decides their fingerprint: a sample of each, whatever its time."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import InputError, ResumeError
from conceptloader.ingest.adopt import adopt as adopting
from conceptloader.ingest.adopt.adopt import adopt
from tests.format.spec_reader import SpecReader
from tests.raises import raises

TOKENS = 50_000


def flat(path):
    path.write_bytes(np.random.default_rng(0).integers(0, 900, TOKENS).astype("<u2").tobytes())
    return path


def nanoset(path):
    """As datatrove writes it."""
    flat(path)
    Path(f"{path}.index").write_bytes(np.array([TOKENS // 3, TOKENS], "<u8").tobytes())
    Path(f"{path}.metadata").write_text(f"gpt2|2\n{TOKENS}\n100 kT")
    return path


def take(file, out):
    shutil.rmtree(out, ignore_errors=True)
    adopt([file], out, dtype=None if file.suffix == ".ds" else "uint16")
    ds = cl.open_dataset(out)
    assert ds.stream_fingerprint == SpecReader(out).stream_fingerprint()
    return ds


def change(file, start, stop):
    data = bytearray(file.read_bytes())
    data[start:stop] = bytes(stop - start)
    file.write_bytes(data)


@pytest.mark.parametrize("make", [flat, nanoset])
@pytest.mark.parametrize("times", ["kept", "new"])
def test_a_resume_with_half_of_the_tokens_changed_is_refused(tmp_path, make, times):
    file = make(tmp_path / "x.ds" if make is nanoset else tmp_path / "x.bin")
    ds = take(file, tmp_path / "out")
    config = cl.load_config({"seq_len": 64, "datasets": {"a": {"path": str(tmp_path / "out")}}})
    saved = json.loads(json.dumps(cl.open_blend(config).spec.to_dict()))
    cl.open_blend(config).resume(saved, 100)
    before = file.stat()
    change(file, TOKENS, 2 * TOKENS)
    if times == "kept":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    again = take(file, tmp_path / "out")
    assert again.stream_fingerprint != ds.stream_fingerprint
    with raises(ResumeError, found="datasets.a.stream_fingerprint"):
        cl.open_blend(config).resume(saved, 100)


def test_a_file_that_changes_while_it_is_adopted_is_refused(tmp_path, monkeypatch):
    file = flat(tmp_path / "x.bin")
    read = adopting.read_content

    def late(*arguments):
        file.write_bytes(file.read_bytes() + b"ab")
        return read(*arguments)

    monkeypatch.setattr(adopting, "read_content", late)
    with raises(InputError, "x.bin", "100002 bytes"):
        adopt([file], tmp_path / "out", dtype="uint16")
    assert not (tmp_path / "out").exists()
