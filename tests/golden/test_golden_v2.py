"""What 0.3.0 wrote is read as it was, by forms that 0.2.0 did not have. make_v2.py says how the archive was made."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.errors import ConceptloaderError
from conceptloader.format.spec.jsonfile import load_json
from conceptloader.format.spec.manifest import parse_manifest
from tests.golden import content, make_v2

EDITS = {  # part -> file, what is in it, what is there instead
    "columns": ("web/00000.some_logs.column", b"\0\xca", b"\0\xcb"),
    "table": ("many/shards.derived.bin", b"conceptshards 1", b"conceptshards 2"),
    "states": ("states/live.json", b"consumed_samples", b"consumed-samples"),
    "runs": ("run-live/conceptloader_batches/000002.000000.jsonl", b'"samples":[3', b'"samples":[4'),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return content.unpack(make_v2.ARCHIVE, tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def expected(root: Path) -> Any:
    return json.loads((root / "expected.json").read_text())


@pytest.mark.parametrize("part", make_v2.PARTS)
def test_it_is_read_as_it_was(
    root: Path, expected: Any, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(root)
    found = make_v2.read(root, part)
    for name, was in expected[part].items():
        assert found[name] == was, name
    assert caplog.messages == []  # such as that a column has other values than when the state was saved


def test_the_table_says_what_the_manifest_says(root: Path, expected: Any) -> None:
    file = root / "many" / "manifest.json"
    said = content.plain(make_v2.shards_of(parse_manifest(load_json(str(file)))))
    assert {**expected["table"], **said} == expected["table"]


def test_datasets_are_sound(root: Path) -> None:
    for name in ("web", "many"):  # columns and the table are verified, too
        assert cl.verify(root / name, full=True, write_checksums=False) == [], name


@pytest.mark.parametrize("part", make_v2.PARTS)
def test_a_difference_is_noticed(
    root: Path, expected: Any, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(root, tmp_path / "copy")
    monkeypatch.chdir(copied)
    name, was, instead = EDITS[part]
    data = (copied / name).read_bytes()
    assert was in data
    (copied / name).write_bytes(data.replace(was, instead, 1))
    with suppress(ConceptloaderError):
        assert make_v2.read(copied, part) != expected[part]
