"""What is written, and where: an output at a URL raises, and no folder is made of its name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.testing import random_documents, write_dataset
from conceptloader.writing import BuildOptions, create_writer
from tests.corpora.records import write_rows

URL = "s3://bucket/x"
COMMANDS: dict[str, str | list[str]] = {
    "build": "build rows.jsonl --tokenizer bytes --workers 1 --out URL",
    "build --recipe": "build --recipe build.yaml --workers 1",
    "adopt": "adopt raw.bin --dtype u2 --out URL",
    "annotate": "annotate ds spans.jsonl --track t --span-unit token --out URL",
    "concat": "subset ds ds2 --out URL",
    "subset": ["subset", "ds", "--where", "id = 'doc-1'", "--out", "URL"],
    "init": "init rows.jsonl --out URL",
    "html": "inspect ds --random 1 --html URL.html",
    "table": ["query", "run.yaml", "from samples", "--samples", "4", "--csv", "URL.csv"],
}
PYTHON: dict[str, Callable[[Any], object]] = {
    "build": lambda out: cl.build("rows.jsonl", out, tokenizer="bytes"),
    "create_writer": lambda out: create_writer(out, BuildOptions(token_type="u2")),
    "concat": lambda out: cl.concat(["ds", "ds2"], out),
    "write_dataset": lambda out: write_dataset(out, random_documents(3)),
    "run log": lambda out: cl.make_dataloader("run.yaml", micro_batch_size=1).log_start(out, step=0),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [{"id": "1", "text": "red"}])
    write_rows(tmp_path / "spans.jsonl", [{"id": "1", "spans": [{"start": 0, "end": 1, "concepts": ["x"]}]}])
    (tmp_path / "raw.bin").write_bytes(bytes(64))
    write_dataset("ds", random_documents(20, seed=1))
    write_dataset("ds2", random_documents(20, seed=2))
    (tmp_path / "run.yaml").write_text(json.dumps({"seq_len": 8, "datasets": {"a": {"path": "ds"}}}))
    recipe = {"inputs": ["rows.jsonl"], "out": URL, "tokenizer": "bytes"}
    (tmp_path / "build.yaml").write_text(json.dumps(recipe))
    return tmp_path


def _names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands(command: str | list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _names(folder)
    assert main([word.replace("URL", URL) for word in (command.split() if isinstance(command, str) else command)]) == 2
    assert "found the URL s3://bucket/x" in capsys.readouterr().err
    assert _names(folder) == before


@pytest.mark.parametrize("write", PYTHON.values(), ids=PYTHON)
@pytest.mark.parametrize("kind", [str, Path])
def test_python(write: Callable[[Any], object], kind: Callable[[str], object], folder: Path) -> None:
    before = _names(folder)
    with pytest.raises(ConfigError, match="found the URL s3://bucket/x, expected a path on a disk; "):
        write(kind(URL))
    (folder / "s3:/bucket/x").mkdir(parents=True)  # as a release that made them leaves it
    with pytest.raises(ConfigError, match="found the URL"):
        write(kind(URL))
    assert _names(folder) == before | {"s3:"}
