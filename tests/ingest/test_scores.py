"""A score beside each concept, on all ways into a dataset; what cannot be one is refused, or left out and listed."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.cli import main
from tests.corpora.chunked import KINDS, Chunked, make
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
    assert build(source, tmp_path / "out", "--encoding", "spans") == 1
    assert "scores are read if their type is given (--scores)" in capsys.readouterr().err
    assert build(source, tmp_path / "out", "--scores", "others=f2") == 2
    assert "scores: found track 'others', expected one of concepts" in capsys.readouterr().err
    assert build(source, tmp_path / "out", "--scores", "concepts=f8") == 2
    assert "codec concepts: found parameters" in capsys.readouterr().err
    bare = write(tmp_path / "bare.jsonl", rows([{k: v for k, v in SPANS[0].items() if k != "scores"}]))
    assert build(bare, tmp_path / "out", "--scores", "concepts=f4") == 1
    assert "expected an object with start, end, concepts and scores" in capsys.readouterr().err


def chunk_options(corpus: Chunked, out: Path, **changes: Any) -> list[str]:
    """Of all commands that take chunks."""
    recipe = corpus.recipe(**{"text": "text", "scores": {kind: f"{kind}_scores" for kind in KINDS}, **changes})
    options = ["--out", str(out), "--column", "text=body", "--workers", "1", "--quiet"]
    return [*corpus.files("documents"), *recipe, *options]


def by_document(path: Path, track: str = "concepts") -> dict[Any, float]:
    """(document, start in bytes, (kind, key)) -> score."""
    ds, result = cl.open_dataset(path), {}
    known = ds.concepts(track)
    for number in range(ds.num_documents):
        first, stop = ds.document_range(number)
        spans = ds.spans(track, first, stop)
        start = np.repeat(spans.start, np.diff(spans.offsets))
        for at, concept, score in zip(start.tolist(), spans.values.tolist(), spans.scores.tolist(), strict=True):
            concept = known[concept]
            result[int(ds.document_id(number) or ""), at, (concept.group, concept.details["concept_id"])] = score
    return result


def test_chunks_of_build_and_annotate(tmp_path: Path) -> None:
    corpus = make(tmp_path / "in", np.random.default_rng(1))
    scores = corpus.score()
    corpus.write()
    texts = {row["doc"]: row["body"] for row in corpus.documents}
    wanted = {
        (doc, len(texts[doc][:start].encode()), key): scores[doc, start, key]
        for doc, spans in corpus.spans.items() for start, _, keys in spans for key in keys
    }  # fmt: skip
    half = chunk_options(corpus, tmp_path / "out", score_type="f2")
    assert main(["build", *half, "--tokenizer", "bytes"]) == 0
    assert by_document(tmp_path / "out") == wanted
    text = [*map(str, corpus.files("documents")), "--column", "text=body", "--column", "id=doc", "--workers", "1"]
    ignored = ["--ignore-column", "starts", "--ignore-column", "source"]
    assert main(["build", *text, *ignored, "--out", str(tmp_path / "text"), "--tokenizer", "bytes"]) == 0
    half = chunk_options(corpus, tmp_path / "noted", score_type="f2")
    assert main(["annotate", str(tmp_path / "text"), *half, "--track", "concepts"]) == 0
    assert by_document(tmp_path / "noted") == wanted
    assert not (tmp_path / "noted.joined").exists()
    for name in ("data", "index", "spans"):
        files = [tmp_path / out / f"00000.concepts.{name}" for out in ("out", "noted")]
        assert files[0].read_bytes() == files[1].read_bytes()
    kept = cl.open_dataset(tmp_path / "noted").manifest.extra["annotated"]["concepts"]
    assert kept["joined"]["report"]["annotated"] == sum(map(len, corpus.spans.values()))


def test_annotate_refuses_chunks_of_other_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = make(tmp_path / "in", np.random.default_rng(1))
    corpus.score()
    source = write(tmp_path / "corpus.jsonl", [{"id": row["doc"], "text": row["body"]} for row in corpus.documents])
    changed = max((row for row in corpus.documents if corpus.spans[row["doc"]]), key=lambda row: len(row["body"]))
    changed["body"] = "x" * len(changed["body"])
    for row in corpus.chunks:
        if row["doc"] == changed["doc"]:
            row["text"] = changed["body"][row["start"] : row["end"]]
    corpus.write()
    assert build(source, tmp_path / "text") == 0
    command = ["annotate", str(tmp_path / "text"), *chunk_options(corpus, tmp_path / "out"), "--track", "concepts"]
    assert main(command) == 1
    assert "found another text, or other tokens, than the document has" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_bad_scores_of_chunks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = make(tmp_path, np.random.default_rng(2))
    corpus.score()
    no_number, count = "chunks with scores that are no finite f4", "chunks with another number of scores than of labels"
    bad: list[tuple[Any, str]] = [([math.nan], no_number), ([1e39], no_number), ([None], no_number)]
    bad += [([0.5, 0.5], count), (None, count)]
    chunks = [row for row in corpus.chunks if row["status"] == "ok" and row["tone"]][: len(bad)]
    for chunk, (scores, _) in zip(chunks, bad, strict=True):
        chunk["tone"], chunk["tone_scores"] = chunk["tone"][:1], scores
    corpus.write()
    command = ["build", *chunk_options(corpus, tmp_path / "out"), "--tokenizer", "bytes"]
    assert main(command) == 1
    message = capsys.readouterr().err
    assert re.search(rf"found \d ({no_number}|{count})", message)
    assert ".parquet: row " in message
    assert main([*command, "--bad-records", str(tmp_path / "bad"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chunks"]["wrong"] == {no_number: 3, count: 2}
    listed = [json.loads(line) for line in (tmp_path / "bad").read_text().splitlines()]
    for chunk, (_, what) in zip(chunks, bad, strict=True):
        assert any(row["problem"] == what and f"chunk {chunk['k']}, tone" in row["where"] for row in listed)


def test_columns_of_scores_are_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = make(tmp_path / "in", np.random.default_rng(2))
    corpus.score()
    for row in corpus.chunks:
        row["tone_scores"] = ["much" for _ in row["tone"] or ()]
    corpus.write()
    command = ["build", *chunk_options(corpus, tmp_path / "out"), "--tokenizer", "bytes"]
    assert main(command) == 1
    assert "column 'tone_scores': found list<" in capsys.readouterr().err
    some = chunk_options(corpus, tmp_path / "out", scores={"topic": "topic_scores"})
    assert main(["build", *some, "--tokenizer", "bytes"]) == 2
    assert "expected scores of all kinds of labels, or of none" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
