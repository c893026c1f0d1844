"""What was written is read as it was: datasets, states, logs, builds. make.py says how the archive was made."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError
from conceptloader.ingest.build.builder import build_dataset
from conceptloader.ingest.records.inputs import find_sources
from tests.golden import content, make

RENAMED_KEYS = {
    "eos_loss": "loss_on_eos", "on_new_seq_len": "on_seq_len_change", "concepts": "tracks", "quarantine": "exclude",
    "file": "token_file",
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = content.unpack(content.ARCHIVE, tmp_path_factory.mktemp("golden"))
    for file in root.glob("*.yaml"):  # configurations are no data: their keys have other names now
        text = file.read_text()
        for old, new in RENAMED_KEYS.items():
            text = text.replace(f'"{old}"', f'"{new}"', 1)
        file.write_text(text)
    return root


@pytest.fixture(scope="module")
def expected(root: Path) -> Any:
    return json.loads((root / "expected.json").read_text())


@pytest.fixture(scope="module")
def found(root: Path) -> Any:
    return content.everything(root)


def test_every_kind_is_there(expected: Any) -> None:
    names = expected["datasets"]
    kinds = ("native-", "adopted-", "annotated-", "joined")
    assert all(any(name.startswith(kind) for name in names) for kind in kinds)
    assert {found["mode"] for found in names.values()} == {"document", "stream-with-metadata", "token-stream"}
    assert set(names["native-spans"]["tracks"]) == set(names["native-dense"]["tracks"]) == set(make.RECORDS)
    assert set(expected["resumed"]) == set(content.STATES)
    assert set(expected["samplers"]) == set(content.SAMPLERS)


def test_datasets(found: Any, expected: Any) -> None:
    assert list(found["datasets"]) == list(expected["datasets"])
    for name, was in expected["datasets"].items():
        for key, value in was.items():
            assert found["datasets"][name][key] == value, f"{name}: {key}"


def test_datasets_are_sound(root: Path) -> None:
    for name in content.datasets(root):
        assert cl.verify(root / name, full=True, write_checksums=False) == [], name


def test_the_recorded_checksums_of_adopted_files_are_compared(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    file = tmp_path / "copy" / "foreign" / "flat.bin"
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    with pytest.raises((FormatError, ConfigError), match=r"flat\.bin"):  # its time is another one
        cl.open_dataset(tmp_path / "copy" / "adopted-verified").tokens(0, 200)
    os.utime(file, (make.MTIME, make.MTIME))
    problems = cl.verify(tmp_path / "copy" / "adopted-verified", full=True)
    assert any("flat.bin" in str(problem) for problem in problems)


@pytest.mark.parametrize("name", content.STATES)
def test_loader_states_go_on(root: Path, expected: Any, name: str) -> None:
    """Saved as JSON, and by torch: what comes next is what came next."""
    text = json.loads((root / "states" / f"{name}.json").read_text())
    saved = torch.load(root / "states" / f"{name}.pt")["loader"]
    assert text == json.loads(json.dumps(saved))
    for state in (text, saved):
        assert json.loads(json.dumps(content.resumed(root, name, state))) == expected["resumed"][name]


@pytest.mark.parametrize("kind", ["samplers", "specs", "run", "quarantine"])
def test_states_and_logs(found: Any, expected: Any, kind: str) -> None:
    """Samplers; order specs, also in nanotron's and Megatron's checkpoints; run log and record; quarantined ranges."""
    assert found[kind] == expected[kind]


def test_a_build_of_the_python_interface_goes_on(root: Path, tmp_path: Path, expected: Any) -> None:
    path = shutil.copytree(root / "build-api", tmp_path / "build-api")
    build = cl.writing.open_writer(path)
    assert [build.is_finished(shard) for shard in range(2)] == [True, False]
    make.write_shard(build, 1)
    cl.writing.finalize(path)
    assert [file.name for file in path.iterdir() if file.name.startswith(".")] == []
    made, whole = content.dataset(path), expected["datasets"]["native-spans"]
    for key in ("tokens", "fields", "documents", "ids", "samples", "stream_fingerprint"):
        assert made[key] == whole[key]
    assert all(made["tracks"][name] == whole["tracks"][name] for name in ("concepts", "json"))


def test_a_build_of_text_goes_on(root: Path, tmp_path: Path, expected: Any) -> None:
    shutil.copytree(root, tmp_path / "copy")
    path = tmp_path / "copy" / "build-text"
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    sources = find_sources([tmp_path / "copy" / "corpus.jsonl"])
    build_dataset(sources, path, make.ingest_options())
    after = {file.name: file.read_bytes() for file in path.iterdir()}
    assert json.loads(json.dumps(content.dataset(path))) == expected["datasets"]["native-text"]
    assert before.items() <= after.items()


def test_the_comparison_notices(root: Path, tmp_path: Path, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another token in a dataset, where no checksum tells it before; another place in a run."""
    shutil.copytree(root, tmp_path / "copy")
    stream = tmp_path / "copy" / "native-tokens" / "00000.stream.bin"
    stream.write_bytes(b"\1" + stream.read_bytes()[1:])
    was = expected["datasets"]["native-tokens"]
    assert json.loads(json.dumps(content.dataset(stream.parent, verify_files=False)))["tokens"] != was["tokens"]
    loader = cl.make_dataloader(root / "plain.yaml", **content.LOADER, consumed_samples=16)
    assert json.loads(json.dumps(content.batches(loader, 3))) != expected["resumed"]["plain"]
