"""A score beside each concept, on all ways into a dataset; what cannot be one is refused, or left out and listed."""

from pathlib import Path
from typing import Any

import numpy as np

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
