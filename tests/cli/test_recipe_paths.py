"""Paths in a recipe are relative to it, whoever runs it from wherever; those of the command line are not."""

from pathlib import Path

import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main
from tests.corpora.records import write_rows


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """recipes/ with a corpus; the current directory is another one."""
    made = tmp_path / "recipes"
    made.mkdir()
    write_rows(made / "in.jsonl", [{"id": "a", "text": "red", "spans": [{"start": 0, "end": 3, "concepts": ["x"]}]}])
    (made / "names.txt").write_text("x\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return made


@pytest.mark.parametrize("vocabulary", ["names.txt", {"concepts": "names.txt"}, ["concepts=names.txt"]])
def test_a_build(vocabulary: object, folder: Path) -> None:
    recipe = {"inputs": ["in.jsonl"], "out": "out", "tokenizer": "bytes", "vocabulary": vocabulary}
    (folder / "build.yaml").write_text(yaml.safe_dump(recipe | {"bad-records": "bad.jsonl"}))
    assert main(["build", "--recipe", "../recipes/build.yaml", "--workers", "1", "--quiet"]) == 0
    assert cl.open_dataset(folder / "out").vocabulary("concepts") == ["x"]
    assert (folder / "bad.jsonl").exists()
    assert main(["build", "--recipe", "../recipes/build.yaml", "--workers", "1", "--quiet", "--out", "here"]) == 0
    assert cl.open_dataset("here").num_documents == 1
    assert main(["build", "in.jsonl", "--recipe", "../recipes/build.yaml", "--workers", "1", "--overwrite"]) == 2


def test_what_init_writes(folder: Path) -> None:
    for out, inputs in (("build.yaml", "../recipes/in.jsonl"), ("../recipes/build.yaml", "../recipes/in.jsonl")):
        assert main(["init", inputs, "--out", out, "--tokenizer", "bytes"]) == 0
        assert main(["build", "--recipe", out, "--workers", "1", "--quiet"]) == 0
        assert cl.open_dataset(Path(out).parent / "data" / "in").vocabulary("concepts") == ["x"]
    found = yaml.safe_load((folder / "build.yaml").read_text())
    assert (found["inputs"], found["out"]) == (["in.jsonl"], "data/in")
    assert found["vocabulary"] == {"concepts": "build.concepts.txt"}
    for name in ("in", "rows"):
        write_rows(folder / f"{name}.jsonl", [{"id": "a", "spans": [{"start": 0, "end": 3, "concepts": ["x"]}]}])
    assert main(["init", "../recipes/data/in", "../recipes/rows.jsonl", "--out", "../recipes/annotate.yaml"]) == 0
    words = ["../recipes/data/in", "--recipe", "../recipes/annotate.yaml", "--span-unit", "character"]
    assert main(["annotate", *words]) == 0
    assert cl.open_dataset(folder / "data" / "in-concepts2").num_documents == 1
