"""The order of writes, syncs and renames: what a power failure can leave is never taken for a dataset."""

import os

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, ReadError
from conceptloader.storage import durable
from tests.raises import raises


@pytest.mark.parametrize("call", ["fsync", "rename", "link"])
def test_a_failing_disk_is_an_error_of_ours(tmp_path, monkeypatch, call):
    """And leaves no file with a final name."""
    if call == "link":
        monkeypatch.setattr(durable.os, call, _fail)
        with raises(ReadError, "build.json", "cannot be written: No space left"):
            cl.writing.create_writer(tmp_path / "ds", cl.writing.BuildOptions())
        assert os.listdir(tmp_path / "ds") == []
        return
    build = cl.writing.create_writer(tmp_path / "ds", cl.writing.BuildOptions())
    writer = build.shard(0)
    writer.add_document([1, 2])
    with monkeypatch.context() as patch:
        patch.setattr(durable.os, call, _fail)
        with pytest.raises(ReadError, match=r"00000\.\S+: cannot be written: No space left on device"):
            writer.finish()
    assert os.listdir(tmp_path / "ds") == ["build.json"]
    with build.shard(0) as writer:
        writer.add_document([1, 2])
    cl.writing.finalize(build.path)
    assert cl.open_dataset(build.path).num_tokens == 2


def _fail(*_):
    raise OSError(28, "No space left on device")


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(durable.os, "link", refuse)
    build = cl.writing.create_writer(tmp_path / "ds", cl.writing.BuildOptions())
    before = (tmp_path / "ds" / "build.json").read_bytes()
    assert cl.writing.create_writer(tmp_path / "ds", cl.writing.BuildOptions()) == build
    with pytest.raises(ConfigError, match="found a build of other options"):
        cl.writing.create_writer(tmp_path / "ds", cl.writing.BuildOptions(token_type="u2"))
    assert (tmp_path / "ds" / "build.json").read_bytes() == before
    assert os.listdir(tmp_path / "ds") == ["build.json"]
