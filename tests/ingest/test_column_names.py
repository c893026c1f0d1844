"""`--column OURS=THEIRS`: rows with names of their own give the datasets that the usual names give."""

import json
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.cli import main
from tests.corpora.records import content
from tests.corpora.records import write_rows as write

TEXT = "Red paint, then blue paint and more red."
SPANS = [(0, 3, "red", 0.5), (16, 20, "blue", 0.25), (36, 39, "red", 1.0)]
USUAL = {
    "id": "id", "text": "text", "spans": "spans",
    "start": "start", "end": "end", "concepts": "concepts", "scores": "scores",
}  # fmt: skip
THEIRS = {
    "id": "doc_id", "text": "body", "spans": "annotations",
    "start": "begin", "end": "stop", "concepts": "label", "scores": "weight",
}  # fmt: skip
NAMED = [word for ours, theirs in THEIRS.items() for word in ("--column", f"{ours}={theirs}")]


def rows(names: dict[str, str], single: bool = False, more: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Documents, the last one without spans. single: labels and scores stand without a list."""

    def span(start: int, end: int, concept: str, score: float) -> dict[str, Any]:
        values = (concept, score) if single else ([concept], [score])
        fields = zip(("start", "end", "concepts", "scores"), (start, end, *values), strict=True)
        return {names[ours]: value for ours, value in fields} | (more or {})

    spans = [[span(*one) for one in SPANS], [span(*SPANS[0])], []]
    return [{names["id"]: f"d{k}", names["text"]: TEXT, names["spans"]: found} for k, found in enumerate(spans)]


def build(source: Path, out: Path, *more: str) -> int:
    names = out.parent / "names.json"
    names.write_text(json.dumps(["red", "blue"]))
    words = ["--tokenizer", "bytes", "--vocabulary", str(names), "--scores", "concepts=f2", "--workers", "1", "--quiet"]
    return main(["build", str(source), "--out", str(out), *words, *more])


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("single", [False, True], ids=["lists", "single"])
def test_names_of_ones_own_give_the_same_dataset(kind: str, single: bool, tmp_path: Path) -> None:
    assert build(write(tmp_path / f"usual.{kind}", rows(USUAL)), tmp_path / "usual") == 0
    source = write(tmp_path / f"theirs.{kind}", rows(THEIRS, single, {"annotator": "me"}))
    assert build(source, tmp_path / "theirs", *NAMED, "--ignore-column", "annotations.annotator") == 0
    usual, theirs = (
        {name: data for name, data in content(tmp_path / out).items() if not name.endswith(".json")}  # what they were
        for out in ("usual", "theirs")
    )
    assert len(usual) > 4
    assert usual == theirs
    with cl.open_dataset(tmp_path / "theirs") as dataset:
        assert [dataset.document_id(k) for k in range(3)] == ["d0", "d1", "d2"]
        found = dataset.spans("concepts", 0, dataset.num_tokens)
        assert found.values.tolist() == [0, 1, 0, 0]
        assert found.scores.tolist() == [0.5, 0.25, 1.0, 0.5]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"annotator": "me"}, "annotator"),  # a field that nobody named or ignored
        ({"start": 1}, "start"),  # beside `begin`, which is called start
    ],
)
def test_a_field_too_many(
    kind: str, more: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / f"theirs.{kind}", rows(THEIRS, more=more))
    assert build(source, tmp_path / "out", *NAMED) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_name_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", rows(USUAL))
    assert build(source, tmp_path / "out", "--column", "begin=start") == 2
    assert "--column begin" in capsys.readouterr().err
    assert build(source, tmp_path / "out", "--column", "text=body") == 1
    assert "'body'" in capsys.readouterr().err


def test_another_track_by_its_name(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", rows({**USUAL, "spans": "entities"}))
    names = tmp_path / "names.txt"
    names.write_text("red\nblue\n")
    words = ["--vocabulary", f"ner={names}", "--scores", "ner=f2", "--tokenizer", "bytes", "--workers", "1", "--quiet"]
    column = ["--column", "spans_ner=entities"]
    assert main(["build", str(source), "--out", str(tmp_path / "out"), *words, *column]) == 0
    with cl.open_dataset(tmp_path / "out") as dataset:
        assert list(dataset.tracks) == ["ner"]
        assert len(dataset.spans("ner", 0, dataset.num_tokens).values) == 4
