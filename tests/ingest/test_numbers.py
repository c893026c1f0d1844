"""`--number NAME:TYPE`: a number per document becomes a track, which weighs the loss and selects documents."""

import math
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.cli import main
from tests.corpora.records import write_rows

QUALITY = [0.5, None, 2, 0.25]
ROWS = [{"id": f"d{k}", "text": "word " * (k + 3), "quality": value} for k, value in enumerate(QUALITY)]


def build(folder: Path, kind: str, rows: list[dict[str, Any]], *more: str, code: str = "f4") -> int:
    source = write_rows(folder / f"in.{kind}", rows)
    words = ["--tokenizer", "bytes", "--workers", "1", "--quiet", "--number", f"quality:{code}", *more]
    return main(["build", str(source), "--out", str(folder / "out"), *words])


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_each_document_has_its_number(kind: str, tmp_path: Path) -> None:
    rows = [{**row, "quality": None if row["quality"] is None else float(row["quality"])} for row in ROWS]
    assert build(tmp_path, kind, rows) == 0
    with cl.open_dataset(tmp_path / "out") as dataset:
        for number, value in enumerate(QUALITY):
            start, stop = dataset.document_range(number)
            spans = dataset.spans("quality", start, stop)
            assert [record.tolist() for record in spans.decode()] == ([] if value is None else [[value]])
            if value is not None:
                assert (spans.start.tolist(), spans.end.tolist()) == ([0], [stop - start])  # its eos too


def test_documents_are_selected_by_it(tmp_path: Path) -> None:
    assert build(tmp_path, "jsonl", ROWS) == 0
    words = ["subset", str(tmp_path / "out"), "--where", "quality > 0.3", "--out", str(tmp_path / "some")]
    assert main(words) == 0
    with cl.open_dataset(tmp_path / "some") as dataset:
        assert [dataset.document_id(k) for k in range(dataset.num_documents)] == ["d0", "d2"]


@pytest.mark.parametrize(
    ("value", "code", "said"),
    [
        ("high", "f4", "quality: found 'high', expected a finite number"),
        (True, "f4", "found True"),
        (1e39, "f4", "a number that float32 holds"),
        (300, "u1", "a number that uint8 holds"),
        (0.5, "i4", "a number that int32 holds"),
        ([1], "f4", "found [1]"),
    ],
)
def test_what_is_no_such_number(
    value: Any, code: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(tmp_path, "jsonl", [ROWS[1], {**ROWS[1], "quality": value}], code=code) == 1
    error = capsys.readouterr().err
    assert "in.jsonl: line 2: quality" in error
    assert said in error


def test_names_and_types_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(tmp_path, "jsonl", ROWS, code="float") == 2
    assert "float" in capsys.readouterr().err
    rows = [{**row, "metadata": {}} for row in ROWS]
    assert build(tmp_path, "jsonl", rows, "--number", "metadata:f4", "--metadata-column", "quality") == 2
    assert "'metadata', expected no name of another track" in capsys.readouterr().err
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_annotations_without_a_number_are_none(tmp_path: Path, suffix: str) -> None:
    """As in a build."""
    assert build(tmp_path, "jsonl", [{"id": str(n), "text": "ab"} for n in range(3)]) == 0
    path = tmp_path / f"scores.{suffix}"
    rows = [{"id": "0", "score": 0.5}, {"id": "1", "score": None}, {"id": "2", "score": 1.0}]
    write_rows(path, rows)
    words = ["--number", "score:f4", "--out", str(tmp_path / "new"), "--quiet"]
    assert main(["annotate", str(tmp_path / "out"), str(path), *words]) == 0
    with cl.open_dataset(tmp_path / "new") as dataset:
        assert [one.tolist() for one in dataset.spans("score", 0, dataset.num_tokens).decode()] == [[0.5], [1.0]]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(("values", "code"), [([2049, 1], "f2"), ([1 << 24 | 1, 1], "f4"), ([256, 1], "u1")])
def test_a_field_holds_integers_as_they_are(values: list[int], code: str, kind: str, tmp_path: Path) -> None:
    source = write_rows(tmp_path / f"in.{kind}", [{"id": "a", "tokens": [1, 2], "w": values}])
    words = ["--vocab-size", "9", "--no-eos", "--workers", "1", "--quiet", "--out", str(tmp_path / "out")]
    assert main(["build", str(source), *words, "--field", f"w:{code}"]) == 1
    assert main(["build", str(source), *words, "--field", "w:f8"]) == 0


@pytest.mark.parametrize("command", ["build", "annotate"])
def test_nan_is_missing_if_somebody_says_so(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As pandas writes it: in a build and over a dataset, by one rule."""
    values = [0.25, math.nan, None]
    rows = [{"id": f"d{k}", "text": "ab", "quality": value} for k, value in enumerate(values)]
    assert build(tmp_path, "jsonl", [{key: row[key] for key in ("id", "text")} for row in rows]) == 0
    source = str(write_rows(tmp_path / "in.parquet", rows))
    given = {"build": [source, "--tokenizer", "bytes"], "annotate": [str(tmp_path / "out"), source]}[command]
    given += ["--ignore-column", "text"] if command == "annotate" else []
    for kind, wanted in (("f4", None), ("f4=none", [0.25]), ("f4=0.5", [0.25, 0.5, 0.5])):
        name = "quality" if command == "build" else "new"
        words = [command, *given, "--number", f"{name}:{kind}", "--out", str(tmp_path / kind), "--quiet"]
        words += ["--column", "value=quality"] if command == "annotate" else ["--workers", "1"]
        assert main(words) == (0 if wanted else 1)
        if not wanted:
            assert "row 1: " in (error := capsys.readouterr().err)
            assert "--number NAME:TYPE=none" in error
            continue
        with cl.open_dataset(tmp_path / kind) as dataset:
            spans = dataset.spans(name, 0, dataset.num_tokens)
            assert [record.tolist() for record in spans.decode()] == [[value] for value in wanted]
