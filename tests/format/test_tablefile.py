"""shards.derived.bin: the manifest of many shards, mapped. It says what manifest.json says, or is not used."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import conceptloader as cl
from conceptloader.errors import FormatError
from conceptloader.format.read import files as reading
from conceptloader.format.read.files import load_manifest
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec import tablefile
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.packed import Packed
from conceptloader.format.spec.paths import Roots
from conceptloader.format.write.build import check_alone
from conceptloader.testing import sparse_dataset
from tests.corpora.variants import VARIANTS, Variant, everything
from tests.raises import raises

Change = Callable[[dict[str, Any], bytearray], None]
SPANS = Variant("stream-with-metadata", "spans")


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small datasets have tables, too."""
    monkeypatch.setattr(tablefile, "LEAST", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A dataset of two, whose shards are in other directories than it."""
    for name in "ab":
        SPANS.build(tmp_path / name)
    cl.concat([tmp_path / "a", tmp_path / "b"], tmp_path / "ds")
    return tmp_path / "ds"


def mapped(path: Path) -> Manifest | None:
    return reading._mapped_manifest(Roots(str(path), None))


def said(manifest: Manifest) -> dict[str, Any]:
    table = manifest.shards
    found = {name: getattr(manifest, name) for name in ("identity", "fingerprints", "num_tokens", "num_documents")}
    found |= {name: getattr(table, name).tolist() for name in ("starts", "first_documents", "rows")}
    found["absent"] = sorted(kind for kind, column in table.files.items() if (column.size < 0).all())
    return {**found, "foreign": [one and asdict(one) for one in table.foreign], "json": manifest.dump()}


def lie(path: Path, change: Change) -> None:
    """A table with the right checksum of wrong content."""
    data = (path / fmt.TABLE).read_bytes()
    end = 32 + int.from_bytes(data[24:32], "little")
    head, arrays = json.loads(data[32:end]), bytearray(data[end:])
    change(head, arrays)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    rest = len(text).to_bytes(8, "little") + text + arrays
    os.unlink(path / fmt.TABLE)  # it may be mapped
    (path / fmt.TABLE).write_bytes(data[:16] + xxhash.xxh3_64_intdigest(rest).to_bytes(8, "little") + rest)


def put(name: str, value: int, dtype: str = "<i8", at: int = 0) -> Change:
    def change(head: dict[str, Any], arrays: bytearray) -> None:
        first = head["arrays"][name]["at"] + at
        arrays[first : first + np.dtype(dtype).itemsize] = np.array(value, dtype).tobytes()

    return change


def say(*place: str, value: Any) -> Change:
    def change(head: Any, _: bytearray) -> None:
        for key in place[:-1]:
            head = head[key]
        head[place[-1]] = value

    return change


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_it_says_what_the_manifest_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: Variant) -> None:
    variant.build(tmp_path / "one")
    cl.concat([tmp_path / "one", tmp_path / "one"], tmp_path / "two")
    for path in (tmp_path / "one", tmp_path / "two"):
        found = mapped(path)
        assert found is not None
        assert said(found) == said(load_manifest(path, None)[0])
        assert cl.verify(path, full=True) == []
        content = everything(path)
        monkeypatch.setattr(tablefile, "LEAST", 1 << 40)
        os.unlink(path / fmt.TABLE)
        assert everything(path) == content
        assert not (path / fmt.TABLE).exists()
        monkeypatch.setattr(tablefile, "LEAST", 0)


def test_every_damage_is_named_and_the_table_made_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table, content = path / fmt.TABLE, everything(path)
    data = table.read_bytes()
    other = (path.parent / "a" / fmt.TABLE).read_bytes()
    flipped = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(0, len(data), 397)]
    for damaged in (b"", data[:8], data[:40], data[:-1], data + b"x", other, *flipped):
        os.unlink(table)
        table.write_bytes(damaged)
        caplog.clear()
        assert mapped(path) is None
        assert str(table) in caplog.text
        if damaged in (b"", other, flipped[0], flipped[-1]):
            assert [problem.file for problem in cl.verify(path)] == [str(table)]
            assert everything(path) == content
            assert table.read_bytes() == data
    assert cl.verify(path) == []


def test_a_manifest_that_changed_is_not_that_of_its_table(path: Path) -> None:
    manifest, sound = path / fmt.MANIFEST, (path / fmt.MANIFEST).read_bytes()
    for at in (30, len(sound) // 2, len(sound) - 20):
        manifest.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        assert mapped(path) is None
        with pytest.raises(FormatError):
            cl.open_dataset(path)
    manifest.write_bytes((path.parent / "a" / fmt.MANIFEST).read_bytes())
    assert mapped(path) is None


LIES = {
    "a layout that is not there": put("rows", 7, at=40),
    "a negative offset": put("rows", -8, at=16),
    "another beginning": put("rows", 5),
    "other tokens": put("rows", 1, at=8),
    "another sum": put("starts", 1),
    "documents elsewhere": put("first_documents", 3, at=8),
    "a size": put("documents.bin.size", 1),
    "a folder that is not there": put("path.folder", 9, "<u4"),
    "names that end elsewhere": put("path.ends", 1 << 40, "<u8"),
    "fewer names than it says": put("path.ends", 1, "<u8", at=24),
    "a folder in a name": put("path.names", ord("/"), "<u1"),
    "a word that is no folder": say("words", "path", value=["../a/00", "../b/"]),
    "an array behind the end": say("arrays", "rows", "at", value=1 << 40),
    "an array that is not aligned": say("arrays", "starts", "at", value=4),
    "another number of shards": say("arrays", "rows", "count", value=5),
    "fewer names": say("arrays", "notes.index.size", "count", value=2),
    "no rows": say("arrays", value={}),
    "another kind": say("kinds", value=["stream.bin", "x.bin"]),
    "another mode": say("value", "mode", value="token-stream"),
    "no tracks": say("value", "tracks", value={}),
    "tracks of another type": say("value", "tracks", value=3),
    "other totals": say("value", "num_tokens", value=3),
    "an unknown key": say("more", value=3),
    "a checksum of another type": say("checksum", value="x"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_table_that_lies_is_refused_as_a_manifest_is(path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    content, data = everything(path), (path / fmt.TABLE).read_bytes()
    lie(path, LIES[name])
    assert mapped(path) is None
    assert str(path / fmt.TABLE) in caplog.text
    assert [problem.file for problem in cl.verify(path)] == [str(path / fmt.TABLE)]
    assert everything(path) == content
    assert (path / fmt.TABLE).read_bytes() == data


def test_paths_of_a_table_do_not_leave_the_roots(path: Path) -> None:
    sound = (path / fmt.TABLE).read_bytes()
    lie(path, say("words", "path", value=["../../", "../b/"]))
    with raises(FormatError, "shards.path", "..", fix="roots=["):
        cl.open_dataset(path)
    (path / fmt.TABLE).write_bytes(sound)
    lie(path, put("path.names", 0, "<u1"))  # a character that no name has
    with raises(FormatError, "shards", "\\x00"):
        cl.open_dataset(path).tokens(0, 3)


def test_a_link_to_a_table_elsewhere_is_not_followed(path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "table"
    os.rename(path / fmt.TABLE, elsewhere)
    os.symlink(elsewhere, path / fmt.TABLE)
    assert mapped(path) is None
    assert everything(path) == everything(path)
    assert not (path / fmt.TABLE).is_symlink()  # it was made again


def test_where_it_cannot_be_written_the_manifest_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    content = everything(path)
    os.unlink(path / fmt.TABLE)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert everything(path) == content
    assert not caplog.records
    (path / f"{fmt.TABLE}").mkdir()
    with caplog.at_level(logging.WARNING):
        assert everything(path) == content
    assert fmt.TABLE in caplog.text


def test_of_processes_that_open_at_a_time_the_first_makes_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.unlink(path / fmt.TABLE)
    read, first = reading._read_manifest, list[int]()

    def slowly(*arguments: Any) -> Any:
        found = read(*arguments)
        monkeypatch.undo()
        monkeypatch.setattr(tablefile, "LEAST", 0)
        everything(path)  # as another process does
        first.append((path / fmt.TABLE).stat().st_ino)
        return found

    monkeypatch.setattr(reading, "_read_manifest", slowly)
    manifest = cl.open_dataset(path).manifest
    assert [(path / fmt.TABLE).stat().st_ino] == first
    assert isinstance(manifest.shards.path, Packed)  # and it maps that one


def test_a_table_of_another_manifest_is_removed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for again in (cl.open_dataset, lambda path: cl.writing.finalize(path)):
        monkeypatch.setattr(tablefile, "LEAST", 1 << 40)
        (path.parent / "a" / fmt.TABLE).write_bytes(b"of a manifest that was larger")
        if again is not cl.open_dataset:
            os.unlink(path.parent / "a" / fmt.MANIFEST)
        again(path.parent / "a")
        assert not (path.parent / "a" / fmt.TABLE).exists()


def test_it_says_nothing_that_releases_differ_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, dump = cl.open_dataset(path), Manifest.dump
    monkeypatch.setattr(Manifest, "dump", lambda self: dump(self).replace(b"extra", b"other"))
    os.utime(path / fmt.MANIFEST)
    dataset.files.require_unchanged()
    os.unlink(path / fmt.TABLE)
    monkeypatch.setattr(tablefile, "LEAST", 1 << 40)
    assert cl.open_dataset(path).identity == dataset.identity


def test_what_cannot_be_a_table_has_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("a name that is no text")

    monkeypatch.setattr(tablefile._Writer, "paths", fail)
    assert [(one.file, one.message) for one in cl.verify(path)] == [(str(path / fmt.TABLE), "a name that is no text")]


def test_builds_know_it(path: Path) -> None:
    assert (path.parent / "a" / fmt.TABLE).exists()
    check_alone(str(path.parent / "a"), [])
    with raises(FormatError, found=fmt.MANIFEST):
        cl.writing.finalize(path.parent / "a")
    os.unlink(path.parent / "a" / fmt.MANIFEST)
    cl.writing.finalize(path.parent / "a")  # which refuses files that are not of a build


def test_small_datasets_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    SPANS.build(tmp_path / "ds")
    everything(tmp_path / "ds")
    assert not (tmp_path / "ds" / fmt.TABLE).exists()


OWN = """
import sys
import conceptloader as cl
def own():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))
def opened(path):
    return cl.batches({"seq_len": 8, "datasets": {"a": {"path": path}}}, micro_batch_size=1)
opened(sys.argv[2])
before = own()
kept = opened(sys.argv[1])
print(own() - before)
"""


def test_a_shard_takes_few_bytes_of_own_memory(tmp_path: Path) -> None:
    for name, shards in (("many", 20_000), ("one", 1)):
        sparse_dataset(tmp_path / name, shards=shards, tokens_per_shard=100)
    cl.open_dataset(tmp_path / "many")  # makes the table
    command = [sys.executable, "-c", OWN, str(tmp_path / "many"), str(tmp_path / "one")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20_000 * 50 / 1024 + 2000  # kilobytes
