"""The commands on data: what they print, as text and as JSON, and their exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.cli import COMMANDS, main
from tests.corpora.columns import add_column
from tests.corpora.records import write_rows

RECORDS = [
    {"id": "a", "text": "A cat sat.", "spans": [{"start": 2, "end": 5, "concepts": ["animal"]}], "metadata": {"n": 1}},
    {"id": "b", "text": "größe 😀", "spans": [{"start": 0, "end": 5, "concepts": ["size", "animal"]}]},
    {"id": "b", "text": "\x1b[31mred", "spans": []},
] * 4


class Shell:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.stderr = ""

    def __call__(self, *arguments: object, code: int = 0) -> str:
        found = main([str(argument) for argument in arguments])
        printed = self._capsys.readouterr()
        self.stderr = printed.err
        assert found == code, printed
        return printed.out

    def json(self, *arguments: object, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    write_rows(path, RECORDS)
    (tmp_path / "names.txt").write_text("size\nanimal\nunused\n")
    return path


@pytest.fixture
def dataset(shell: Shell, source: Path, tmp_path: Path) -> Path:
    out = tmp_path / "data"
    names = tmp_path / "names.txt"
    found = shell.json("build", source, "--out", out, "--tokenizer", "bytes", "--vocabulary", names, "--workers", 1)
    assert found["documents"] == 12
    assert found["shards"] == 1
    return out


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_teaches(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*name.split(), "--help"])
    assert end.value.code == 0
    assert f"\n  conceptloader {name}" in capsys.readouterr().out, "no example"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"conceptloader {cl.__version__}\n"


def test_errors(shell: Shell, source: Path, tmp_path: Path) -> None:
    build = ("build", source, "--out", tmp_path / "data")
    assert shell(*build, code=2) == ""
    assert "found no --tokenizer (or --vocab-size)" in shell.stderr
    shell("build", tmp_path / "none", "--out", tmp_path / "data", "--tokenizer", "bytes", code=2)
    found = shell.json(*build, "--tokenizer", "bytes", code=1)
    assert (found["error"]["kind"], found["error"]["code"]) == ("InputError", "input")
    assert f"{source}: line 1: " in found["error"]["message"]
    assert found["error"]["message"] in shell.stderr
    shell("inspect", tmp_path / "data", code=1)
    shell("inspect", tmp_path / "nowhere", code=2)


def test_inspect(shell: Shell, dataset: Path) -> None:
    overview = shell.json("inspect", dataset)
    assert overview["tokens"] == cl.open_dataset(dataset).num_tokens
    assert overview["tracks"]["concepts"]["concepts"] == 3
    assert "tracks_fingerprint: " in shell("inspect", dataset)

    window = shell.json("inspect", dataset, "--window", 1, "--seq-len", 8)
    assert window["tokens"] == [8, 17]
    assert window["token_ids"] == cl.open_dataset(dataset).tokens(8, 17).tolist()
    assert [(part["id"], part["start"], part["end"]) for part in window["documents"]] == [("a", 0, 3), ("b", 3, 9)]
    # eos, token 2 of the window, belongs to no span; "größe" is cut by the end of the window
    assert [(span["start"], span["end"], span["concepts"]) for span in window["tracks"]["concepts"]] == [
        (3, 9, ["size", "animal"]),
    ]
    assert [span["record"] for span in window["tracks"]["metadata"]] == [{"n": 1}, {}]

    text = shell("inspect", dataset, "--document", "a")
    assert "A cat sat." in text
    assert "[2, 5) animal" in text
    assert len(shell.json("inspect", dataset, "--document", "b")["documents"]) == 8
    assert shell.json("inspect", dataset, "--document-number", 1)["text"] == "größe 😀"
    assert shell.json("inspect", dataset, "--tokens", "0:5")["text"] == "A cat"
    for wrong in (["--window", 999, "--seq-len", 8], ["--window", 0], ["--document", "zz"], ["--tokens", "5:x"]):
        shell("inspect", dataset, *wrong, code=2)


def test_inspect_shows_columns_of_tokens(shell: Shell, dataset: Path) -> None:
    tokens = cl.open_dataset(dataset).num_tokens
    ids = np.arange(tokens * 9).reshape(tokens, 9).astype("u2")
    add_column(dataset, "ids", ids, missing=np.arange(tokens) == 12)
    halves = (np.arange(tokens).astype("f4").view("u4") >> 16).astype("u2")
    add_column(dataset, "halves", halves, "bf16")
    given = ("--tokens", "11:14", "--column", "ids", "--column", "halves")
    columns = shell.json("inspect", dataset, *given)["columns"]
    assert columns["ids"] == {"item": "u2[9]", "values": [ids[11].tolist(), None, ids[13].tolist()]}
    assert columns["halves"] == {"item": "bf16", "values": [11, 12, 13]}
    text = shell("inspect", dataset, *given).splitlines()
    assert text[text.index("column ids: u2[9]") + 1 :][:3] == [
        "  0 of token 103: 99 100 101 102 103 104 105 106 ...", "  1 of token 114: no value",
        "  2 of token 195: 117 118 119 120 121 122 123 124 ...",
    ]  # fmt: skip
    assert "columns" not in shell.json("inspect", dataset, "--tokens", "11:14")
    shell("inspect", dataset, "--tokens", "0:3", "--column", "idz", code=2)
    assert "did you mean ids?" in shell.stderr
    shell("inspect", dataset, "--column", "ids", code=2)


def test_sample(shell: Shell, dataset: Path) -> None:
    found = shell.json("inspect", dataset, "--random", 2, "--seq-len", 10, "--seed", 3)
    assert found == shell.json("inspect", dataset, "--random", 2, "--seq-len", 10, "--seed", 3)
    assert len(found["samples"]) == 2
    assert all(sample["tokens"][1] - sample["tokens"][0] == 11 for sample in found["samples"])
    assert "== document" in shell("inspect", dataset, "--random", 3, "--documents")


def test_stats(shell: Shell, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shell.json("inspect", dataset, "--stats")
    concepts = {entry["name"]: entry for entry in found["tracks"]["concepts"]["concepts"]}
    # in each of four pairs of documents "cat" and "größe", whose eos belong to no span
    assert concepts["animal"]["spans"] == 4 * 2
    assert concepts["animal"]["tokens"] == 4 * (3 + 7)
    assert concepts["size"]["tokens"] == 4 * 7
    assert found["tracks"]["concepts"]["span_lengths"]["100"] == 7
    assert found["document_lengths"] == {
        "0": 9, "10": 9, "25": 9, "50": 11, "75": 13, "90": 13, "99": 13, "100": 13,
    }  # fmt: skip
    assert "animal" in shell("inspect", dataset, "--stats", "--track", "concepts")
    monkeypatch.setattr("conceptloader.format.tools.stats._CHUNK", 5)  # spans cross the borders of pieces
    again = shell.json("inspect", dataset, "--stats")
    assert again == found


def test_verify(shell: Shell, dataset: Path) -> None:
    assert shell.json("verify", dataset, "--full")["sound"]
    with open(dataset / "00000.stream.bin", "r+b") as file:
        file.write(b"\xff")
    assert "1 problems (sizes and spot checksums" in shell("verify", dataset, code=1)
    found = shell.json("verify", dataset, "--full", code=1)
    assert not found["sound"]
    assert found["problems"][0]["file"].endswith("00000.stream.bin")
    assert found["problems"][0]["tokens"] == [0, cl.open_dataset(dataset).num_tokens]
    assert "00000.stream.bin" in shell("verify", dataset, "--full", code=1)


def test_names_that_lines_cannot_hold(shell: Shell, tmp_path: Path) -> None:
    strange = tmp_path / "strange.jsonl"
    strange.write_text(json.dumps({"text": "a", "spans": [{"start": 0, "end": 1, "concepts": ["a\nb", "["]}]}))
    shell("init", strange, "--tokenizer", "bytes", "--out", tmp_path / "build.yaml")
    assert json.loads((tmp_path / "build.concepts.txt").read_text()) == ["[", "a\nb"]
    shell("build", "--recipe", tmp_path / "build.yaml", "--max-unaligned-spans", "1")


def test_a_reader_that_leaves(dataset: Path) -> None:
    command = f"{sys.executable} -m conceptloader inspect {dataset} --random 12 --documents --json | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, timeout=60, check=True)
    assert done.stdout == b"{\n"
    assert b"Traceback" not in done.stderr
