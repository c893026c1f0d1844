"""The order of writes, syncs and renames: what a power failure can leave is never taken for a dataset."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, ReadError
from conceptloader.storage import durable
from tests.raises import raises


class Recorder:
    """Stands in for `os` in the writing module and notes what reaches the disk in which order."""

    def __init__(self) -> None:
        self.synced: set[int] = set()  # inodes whose content was synced
        self.events: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)
        self.synced.add(os.fstat(descriptor).st_ino)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            self.events.append("sync directory")

    def rename(self, source: str, target: str) -> None:
        assert os.stat(source).st_ino in self.synced, f"{target} gets its name before its content is on disk"
        self.events.append(os.path.basename(target))
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        assert os.stat(source).st_ino in self.synced
        self.events.append(os.path.basename(target))
        os.link(source, target)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(durable, "os", recorder)
    return recorder


def test_names_follow_content_and_the_manifest_comes_last(tmp_path: Path, recorder: Recorder) -> None:
    options = cl.writing.BuildOptions(tracks={"a": cl.writing.TrackOptions(vocabulary=["x"])}, fields={"f": "u1"})
    build = cl.writing.create_writer(tmp_path / "ds", options)
    with build.shard(0) as writer:
        writer.add_document([1, 2], {"a": [(0, 1, [0])]}, "id", {"f": [0, 0]})
    cl.writing.finalize(build.path)
    events = recorder.events
    files = {name for name in os.listdir(build.path) if name.startswith("00000.") and name != "00000.shard.json"}
    shard, report = set(events[5 : 5 + len(files)]), 5 + len(files)
    made = "sync directory"  # the one that holds the new directory
    assert events[:5] == [made, "build.json", "sync directory", "a.vocabulary.json", "sync directory"]
    assert shard == files
    assert events[report:] == [
        "sync directory",
        "00000.shard.json",
        "sync directory",
        "manifest.json",
        "sync directory",
    ]


@pytest.mark.parametrize("call", ["fsync", "rename", "link"])
def test_a_failing_disk_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
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


def test_the_options_that_differ_are_named(tmp_path: Path) -> None:
    names = [f"column_{number}" for number in range(40)]

    def begin(ignored: list[str], text: str, eos: Any) -> None:
        ingest = {"columns": {"ignored": ignored, "text": text}, "eos": eos}
        cl.writing.create_writer(tmp_path / "ds", cl.writing.BuildOptions(extra={"ingest": ingest}))

    begin(names, "text", None)
    for others, told in (
        (([*names[:-1], "x"], "text", None), 'columns.ignored[39]: found "column_39", expected "x"); '),
        ((names[:-7], "text", None), 'ignored[37]: found "column_37", expected null; and 2 more); pass the same'),
        ((names, "a", None), 'other options (extra.ingest.columns.text: found "text", expected "a"); pass the same'),
        ((names, "text", {"id": 3}), 'other options (extra.ingest.eos: found null, expected {"id":3}); pass the same'),
    ):
        with pytest.raises(ConfigError, match=re.escape(told)):
            begin(*others)


def _fail(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(durable.os, "link", refuse)
    build = cl.writing.create_writer(tmp_path / "ds", cl.writing.BuildOptions())
    before = (tmp_path / "ds" / "build.json").read_bytes()
    assert cl.writing.create_writer(tmp_path / "ds", cl.writing.BuildOptions()) == build
    with pytest.raises(ConfigError, match="found a build of other options"):
        cl.writing.create_writer(tmp_path / "ds", cl.writing.BuildOptions(token_type="u2"))
    assert (tmp_path / "ds" / "build.json").read_bytes() == before
    assert os.listdir(tmp_path / "ds") == ["build.json"]
