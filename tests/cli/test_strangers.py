"""A user without permissions, or on a full disk: what is wrong is said, nothing is left out, nothing stays behind."""

import json
import os
import resource
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

import conceptloader as cl
from conceptloader.cli import main

NOBODY = 65534


@contextmanager
def nobody():
    """As a user who owns nothing; whoever is not root is one already, of closed files at least."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@contextmanager
def small_disk(size):
    """No file can grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def folder():
    """One that everybody may write to, unlike pytest's, with a corpus, a part of which is closed."""
    path = Path(tempfile.mkdtemp())
    (path / "corpus" / "closed").mkdir(parents=True)
    row = {"text": "A cat sat. " * 20, "spans": [{"start": 2, "end": 5, "concepts": [3]}]}
    lines = "".join(json.dumps({"id": str(k), **row}) + "\n" for k in range(100))
    (path / "corpus" / "a.jsonl").write_text(lines)
    (path / "corpus" / "closed" / "b.jsonl").write_text(lines.replace('"id": "', '"id": "b'))
    (path / "corpus" / "closed" / "b.npy").write_bytes(bytes(100))
    (path / "corpus" / "a.npy").write_bytes(bytes(100))
    rows = "".join(json.dumps({"id": str(k), "start": 2, "end": 5, "concepts": [1]}) + "\n" for k in range(100))
    (path / "spans.jsonl").write_text(rows)
    cl.build(path / "corpus" / "a.jsonl", path / "data", tokenizer="bytes")
    path.chmod(0o777)
    yield path
    (path / "corpus" / "closed").chmod(0o700)
    shutil.rmtree(path)


def test_a_folder_that_cannot_be_read_is_not_left_out(folder, capsys):
    closed = folder / "corpus" / "closed"
    build = ["build", str(folder / "corpus"), "--tokenizer", "bytes", "--workers", "1"]
    adopt = ["adopt", str(folder / "corpus"), "--dtype", "uint8"]
    main([*build, "--out", str(folder / "first")])  # imports what nobody else may read
    main([*adopt, "--out", str(folder / "second")])
    capsys.readouterr()
    closed.chmod(0)
    for command in (build, adopt):
        with nobody():
            assert main([*command, "--out", str(folder / "out")]) == 1
        assert f"{closed}: cannot be read: Permission denied" in capsys.readouterr().err
        assert not (folder / "out").exists()


@pytest.mark.parametrize("command", ["annotate", "adopt", "subset", "init"])
def test_a_full_disk_is_named_and_leaves_nothing(command, folder, capsys):
    data, out = str(folder / "data"), folder / "out"
    arguments = {
        "annotate": [data, str(folder / "spans.jsonl"), "--track", "t", "--span-unit", "character"],
        "adopt": [str(folder / "corpus" / "a.npy"), "--dtype", "uint8"],
        "subset": [data, data],
        "init": [data],
    }[command]
    before = sorted(folder.iterdir())
    with small_disk(64):
        assert main([command, *arguments, "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert "out" in said
    assert "cannot be written: File too large" in said
    left = sorted(folder.iterdir())
    assert left == before or (command == "subset" and not list(out.iterdir()))
    assert main([command, *arguments, "--out", str(out)]) == 0


def test_a_build_on_a_full_disk_goes_on_later(folder, capsys):
    source, out = folder / "corpus" / "a.jsonl", folder / "out"
    with small_disk(5_000):
        assert main(["build", str(source), "--tokenizer", "bytes", "--workers", "1", "--out", str(out)]) == 1
    assert "stream.bin: cannot be written: File too large; what is finished is kept" in capsys.readouterr().err
    assert main(["build", str(source), "--tokenizer", "bytes", "--workers", "1", "--out", str(out)]) == 0
    names = sorted(path.name for path in (folder / "data").iterdir())
    assert sorted(path.name for path in out.iterdir()) == names
    for name in names:
        assert (out / name).read_bytes() == (folder / "data" / name).read_bytes(), name
