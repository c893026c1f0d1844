"""Documents and annotated chunks to a dataset, by command, against the oracle of a generator; killed and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.ingest.chunks import join as joining
from tests.corpora.chunked import Chunked, make

RECIPE = Path(__file__).parents[2] / "examples/atlas/build.yaml"
DOCUMENTS, CHUNKS, CONCEPTS = "fineweb-atlas-documents", "fineweb-atlas-annotated", "fineweb-concept-atlas.parquet"
KINDS = ("content", "tone", "document", "entity")
NAMES = {"topic": "content", "tone": "tone"}  # of the generator's kinds there


def as_atlas(corpus: Chunked, path: Path, files: int = 2, damaged: int = -1) -> Path:
    """The corpus under the names of guidelabs/fineweb-atlas. damaged: id of a document that says so."""
    documents = [
        {
            "document_text": row["body"], "doc_int_id": row["doc"], "chunk_char_starts": row["starts"],
            "chunk_count": len(row["starts"]), "has_segmentation_error": row["doc"] == damaged,
        }
        for row in corpus.documents
    ]  # fmt: skip
    chunks = [
        {"doc_int_id": row["doc"], "chunk_id": row["k"], "chunk_text": row["text"], "chunk_status": row["status"]}
        | {f"{kind}_ids": next((row[k] for k, v in NAMES.items() if v == kind), []) for kind in KINDS}
        for row in corpus.chunks
    ]
    concepts = [row | {"concept_type": NAMES[row["concept_type"]], "rare": float("nan")} for row in corpus.concepts]
    lists = {f"{kind}_ids": pa.list_(pa.int64()) for kind in KINDS} | {"chunk_char_starts": pa.list_(pa.int32())}
    for name, rows in ((DOCUMENTS, documents), (CHUNKS, chunks)):
        (path / name).mkdir(parents=True)
        schema = pa.schema([(f.name, lists.get(f.name, f.type)) for f in pa.Table.from_pylist(rows).schema])
        for k in range(files):
            part = pa.Table.from_pylist(rows[k::files], schema=schema)
            pq.write_table(part, path / name / f"shard_{k:04d}.parquet", row_group_size=7)
    pq.write_table(pa.Table.from_pylist(concepts), path / CONCEPTS)
    return path


def found(path: Path) -> dict[int, Any]:
    """As `Chunked.spans`, with offsets in bytes of UTF-8."""
    ds = cl.open_dataset(path)
    known, spans = ds.concepts("concepts"), {}
    for number in range(ds.num_documents):
        start, stop = ds.document_range(number)
        part = ds.spans("concepts", start, stop)
        keys = [{(known[i].group, known[i].details["concept_id"]) for i in ids.tolist()} for ids in part.decode()]
        spans[int(ds.document_id(number) or "")] = list(zip(part.start.tolist(), part.end.tolist(), keys, strict=True))
    return spans


def wanted(corpus: Chunked) -> dict[int, Any]:
    texts = {row["doc"]: row["body"] for row in corpus.documents}

    def at(doc: int, character: int) -> int:
        return len(texts[doc][:character].encode())

    return {
        doc: [(at(doc, a), at(doc, b), {(NAMES[kind], key) for kind, key in keys}) for a, b, keys in spans]
        for doc, spans in corpus.spans.items()
    }


def command(path: Path, out: Path, **chunks: str) -> list[str]:
    """As the example's recipe says it, but for these of its `chunks`."""
    recipe = yaml.safe_load(RECIPE.read_text())
    recipe["chunks"] |= chunks
    (path / "build.yaml").write_text(yaml.safe_dump(recipe))
    return ["build", "--recipe", str(path / "build.yaml"), "--out", str(out), "--tokenizer", "bytes", "--workers", "1"]


def test_the_example_finds_what_the_oracle_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = make(tmp_path, np.random.default_rng(5))
    chunk = next(row for row in corpus.chunks if row["status"] == "ok")
    chunk["text"] = "something else"  # left without annotation, and counted
    start = next(row["start"] for row in corpus.chunks if row is chunk)
    corpus.spans[chunk["doc"]] = [span for span in corpus.spans[chunk["doc"]] if span[0] != start]
    atlas, out = as_atlas(corpus, tmp_path / "atlas"), tmp_path / "out"
    assert main([*command(atlas, out), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert found(out) == wanted(corpus)
    assert not (tmp_path / "out.joined").exists()
    assert cl.verify(out, full=True) == []
    assert first["chunks"]["wrong"] == {"chunks with another text than the document has there": 1}
    assert first["chunks"]["annotated"] == sum(map(len, corpus.spans.values()))
    ds = cl.open_dataset(out)
    assert ds.tracks["concepts"].parameters == {"ids": "u2"}
    assert dict(ds.tracks["concepts"].vocabulary.groups) == {"content": 30, "tone": 30}  # type: ignore[union-attr]
    assert ds.concept("concept 7").details["description"] == f"is {corpus.concepts[7]['concept_id']}"
    assert ds.concept("concept 7").group == "tone"
    assert ds.concept("concept 7").details["rare"] is None
    before = {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    assert main([*command(atlas, out), "--json"]) == 0  # complete: nothing is joined again, the counts stay known
    again = json.loads(capsys.readouterr().out)
    assert again["chunks"] == first["chunks"]
    assert again["kept_shards"] == again["shards"]
    assert before == {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    assert main(command(atlas, out, wrong="error")) == 2  # not what the dataset was built with
    assert "found a complete dataset of other options" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["keep", "unannotated"])
def test_documents_with_errors_of_segmentation(tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = make(tmp_path, np.random.default_rng(6))
    damaged = max(corpus.spans, key=lambda doc: len(corpus.spans[doc]))
    assert corpus.spans[damaged]
    atlas, out = as_atlas(corpus, tmp_path / "atlas", damaged=damaged), tmp_path / "out"
    assert main(command(atlas, out, damaged_documents=option)) == 0
    if option == "unannotated":
        corpus.spans[damaged] = []
    assert found(out) == wanted(corpus)
    assert "1 document said to have errors in the chunks" in capsys.readouterr().out


def test_wrong_options_of_chunks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = make(tmp_path, np.random.default_rng(7)).write(2)
    arguments = ["build", *corpus.files("documents"), "--out", str(tmp_path / "out"), "--tokenizer", "bytes"]
    for wrong in ({"concepts": None}, {"labels": []}, {"wrong": "ignore"}, {"score_type": "f8"}, {"lables": {}}):
        assert main([*arguments, *corpus.recipe(**{"text": "text", **wrong})]) == 2
        assert f"recipe.yaml: chunks.{next(iter(wrong))}: found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("build in --tokenizer bytes {chunks} --ignore-column x", "found chunks and --ignore-column"),
        ("build in --tokenizer bytes {chunks} --scores concepts=f2", "found chunks and --scores"),
        ("build in --tokenizer bytes --chat --field x:u1", "build: found --chat and --field"),
        ("build in --tokenizer bytes --chat --column text=x", "--column text"),
        ("annotate ds in --track t {chunks} --ignore-column x", "annotate: found chunks and --ignore-column"),
    ],
)
def test_options_that_would_be_passed_over(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A build with chunks and --scores was made, say."""
    words = words.format(chunks='--chunks {"join":"doc"}')
    assert main([*words.split(), "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_and_resumed_it_has_the_same_bytes(tmp_path: Path) -> None:
    corpus = make(tmp_path, np.random.default_rng(8), documents=400)
    atlas = as_atlas(corpus, tmp_path / "atlas", files=3)
    whole, out = tmp_path / "whole", tmp_path / "out"
    more = ["--shard-input-bytes", "2K"]
    assert main([*command(atlas, whole), *more]) == 0
    moments = {
        "dealing": lambda: any((tmp_path / "out.joined").glob("deal-*.json")),
        "joining": lambda: any((tmp_path / "out.joined").glob("join-*.json")),
        "building": lambda: any(out.glob("*.shard.json")),
    }
    for moment, reached in moments.items():
        process = subprocess.Popen(
            [sys.executable, "-m", "conceptloader", *command(atlas, out), *more, "--quiet"], start_new_session=True
        )
        while process.poll() is None and not reached():
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not (out / "manifest.json").exists(), f"{moment}: it was over already"
    assert main([*command(atlas, out), *more]) == 0
    names = sorted(file.name for file in whole.iterdir())
    assert names == sorted(file.name for file in out.iterdir())
    assert [n for n in names if (whole / n).read_bytes() != (out / n).read_bytes()] == []
    assert not (tmp_path / "out.joined").exists()
    assert found(out) == wanted(corpus)


def with_wrong_texts(path: Path, count: int = 40) -> Path:
    """A corpus of which `count` chunks contradict their documents."""
    corpus = make(path, np.random.default_rng(9), documents=100)
    chunks = [row for row in corpus.chunks if row["status"] == "ok"][:count]
    for row in chunks:
        row["text"] = "something else"
    assert len(chunks) == count
    return as_atlas(corpus, path / "atlas", files=4)


def test_all_that_is_wrong_is_listed_whenever_it_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a first start without the list; once each, after a start that was interrupted while it wrote the list."""
    atlas, out, bad = with_wrong_texts(tmp_path), tmp_path / "out", tmp_path / "bad.jsonl"
    run, ended = joining.run_task, []

    def stop(task: joining.Task, tell: Any) -> None:
        if len(ended) == 7:  # of 9: the ids, all of dealing, half of joining
            raise KeyboardInterrupt
        run(task, tell)
        ended.append(task.kind)

    monkeypatch.setattr(joining, "run_task", stop)
    assert main([*command(atlas, out), "--quiet"]) == 130
    assert "join" in ended
    monkeypatch.setattr(joining, "run_task", run)
    words = [*command(atlas, out), "--quiet", "--bad-records", str(bad)]
    assert main([*words, "--json"]) == 0
    capsys.readouterr()
    listed = bad.read_text().splitlines(keepends=True)
    assert len(listed) == len({*listed}) == 40
    assert main([*words, "--json"]) == 0  # complete, and all are listed
    assert sum(json.loads(capsys.readouterr().out)["chunks"]["wrong"].values()) == 40
    assert bad.read_text() == "".join(listed)
    bad.write_text("".join(listed[:30]) + listed[30][:-5])
    assert main(words) == 2
    assert "found 30 of the 40 chunks without annotation, expected all" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0
    assert bad.read_text() == "".join(listed)


DIES = """
import os, signal, sys
from conceptloader.cli import main
out, at = sys.argv[1], sys.argv[2]
def hook(event, found):
    if event in ("os.remove", "os.rmdir", "shutil.rmtree") and os.path.exists(out + "/manifest.json"):
        if "lock" not in str(found[0]) and (at == "first" or not os.path.exists(out + ".joined/plan.json")):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
main(sys.argv[3:])
"""


@pytest.mark.parametrize("at", ["first", "after the plan"])
def test_killed_while_what_was_joined_is_removed(tmp_path: Path, at: str) -> None:
    """At its first step, and when the plan is gone. Then everything can be made again, or is complete."""
    corpus = make(tmp_path, np.random.default_rng(9))
    atlas, out = as_atlas(corpus, tmp_path / "atlas", files=3), tmp_path / "out"
    words = [*command(atlas, out), "--quiet"]
    process = subprocess.run([sys.executable, "-c", DIES, str(out), at, *words], check=False)
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / "out.joined").exists()
    assert found(out) == wanted(corpus)
    assert main([*words, "--overwrite"]) == 0
    assert found(out) == wanted(corpus)
    assert main(words) == 0
    assert not (tmp_path / "out.joined").exists()


@pytest.mark.parametrize("case", ["join", "column", "concepts", "bos"])
def test_nothing_is_removed_before_all_is_checked(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = make(tmp_path, np.random.default_rng(9))
    atlas, out = as_atlas(corpus, tmp_path / "atlas"), tmp_path / "out"
    words = [*command(atlas, out), "--quiet"]
    assert main(words) == 0
    before = sorted((file.name, file.read_bytes()) for file in out.iterdir())
    if case == "join":  # what a release before left when it was killed
        (tmp_path / "out.joined").mkdir()
        (tmp_path / "out.joined" / "ids.parquet").write_bytes(b"")
    elif case == "bos":
        words += ["--bos", "300"]
    else:
        name = CONCEPTS if case == "concepts" else f"{CHUNKS}/shard_0001.parquet"
        table = pq.read_table(atlas / name)
        column = "name" if case == "concepts" else "chunk_status"
        pq.write_table(table.drop_columns([column]), atlas / name)
    assert main([*words, "--overwrite"]) != 0
    assert "expected" in capsys.readouterr().err
    assert before == sorted((file.name, file.read_bytes()) for file in out.iterdir())
