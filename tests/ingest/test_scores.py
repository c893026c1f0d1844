"""A score beside each concept, on all ways into a dataset; what cannot be one is refused, or left out and listed."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.cli import main
from tests.corpora.records import write_rows as write

NAMES = ["cat", "dog", "red"]
SPANS = [
    {"start": 0, "end": 3, "concepts": ["dog", "cat"], "scores": [0.25, -1]},
    {"start": 4, "end": 6, "concepts": [], "scores": []},
    {"start": 6, "end": 8, "concepts": [2], "scores": [0.3]},
]


def rows(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ids = [
        {**span, "concepts": [c if isinstance(c, int) else NAMES.index(c) for c in span["concepts"]]} for span in spans
    ]
    return [
        {"id": "a", "text": "one two 3", "spans": []},
        {"id": "b", "text": "one two 3", "spans": ids},
        {"id": "c", "text": "last"},
    ]


def build(path: Path, out: Path, *more: str) -> int:
    (out.parent / "names.txt").write_text("\n".join(NAMES))
    more = (*more, "--vocabulary", str(out.parent / "names.txt")) if more else ()
    return main(["build", str(path), "--out", str(out), "--quiet", "--tokenizer", "bytes", "--workers", "1", *more])


def found(path: Path, track: str = "concepts") -> list[Any]:
    """(start, end, {concept: score}) of all spans, in tokens; a record holds each concept once here."""
    ds = cl.open_dataset(path)
    spans = ds.spans(track, 0, ds.num_tokens)
    cuts = spans.offsets[1:-1]
    pairs = zip(np.split(spans.values, cuts), np.split(spans.scores, cuts), strict=True)
    records = [dict(zip(ids.tolist(), scores.tolist(), strict=True)) for ids, scores in pairs]
    return list(zip(spans.start.tolist(), spans.end.tolist(), records, strict=True))


def test_union_keeps_the_highest_score(tmp_path: Path) -> None:
    over = [{"start": 2, "end": 7, "concepts": [0, 2], "scores": [0.5, 0.125]}]
    source = write(tmp_path / "corpus.jsonl", rows(SPANS + over))
    assert build(source, tmp_path / "out", "--scores", "concepts=f4", "--overlap", "union") == 0
    third, more = float(np.float32(0.3)), {0: 0.5, 2: 0.125}
    assert found(tmp_path / "out") == [
        (10, 12, {0: -1.0, 1: 0.25}), (12, 13, {0: 0.5, 1: 0.25, 2: 0.125}), (13, 14, more), (14, 16, more),
        (16, 17, {0: 0.5, 2: third}), (17, 18, {2: third}),
    ]  # fmt: skip


BAD: dict[str, tuple[Any, str]] = {
    "NaN": ([math.nan], "found nan, expected a finite number"),
    "infinite": ([math.inf], "found inf, expected a finite number"),
    "beyond f2": ([7e4], "found 70000.0, expected a finite number"),
    "length": ([0.5, 0.5], "expected .*(one|a score) for each"),
    "no number": (["much"], "found type string, expected numbers|found 'much', expected a finite number"),
    "null": ([None], "found null|found None"),
}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("case", BAD)
def test_bad_scores(tmp_path: Path, case: str, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    scores, problem = BAD[case]
    if suffix == ".jsonl" and case in ("NaN", "infinite"):
        problem = "found (NaN|Infinity), expected JSON"
    given = rows([{"start": 0, "end": 3, "concepts": [1], "scores": scores}])
    source, out = write(tmp_path / f"corpus{suffix}", given), tmp_path / "out"
    assert build(source, out, "--scores", "concepts=f2") == 1
    message = capsys.readouterr().err
    place = "" if case == "no number" and suffix == ".parquet" else "line 2" if suffix == ".jsonl" else "row 1"
    assert f"{source}: {place}" in message
    assert re.search(problem, message)
    if place:
        assert build(source, out, "--scores", "concepts=f2", "--bad-records", str(tmp_path / "bad")) == 0
        assert len((tmp_path / "bad").read_text().splitlines()) == 1
        assert cl.open_dataset(out).num_documents == 2


def test_what_a_track_has_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "corpus.jsonl", rows(SPANS))
    assert build(source, tmp_path / "out") == 1
    assert "scores are read if their type is given (--scores)" in capsys.readouterr().err
    assert build(source, tmp_path / "out", "--scores", "others=f2") == 2
    assert "scores: found track 'others', expected one of concepts" in capsys.readouterr().err
    assert build(source, tmp_path / "out", "--scores", "concepts=f8") == 2
    assert "codec concepts: found parameters" in capsys.readouterr().err
    bare = write(tmp_path / "bare.jsonl", rows([{k: v for k, v in SPANS[0].items() if k != "scores"}]))
    assert build(bare, tmp_path / "out", "--scores", "concepts=f4") == 1
    assert "a list of structs with start, end, concepts and scores" in capsys.readouterr().err
