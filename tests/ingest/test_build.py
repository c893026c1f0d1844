"""Records in, dataset out: every format, any plan, any number of workers."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.format.tools.verify import verify
from conceptloader.ingest.align.rules import EOS_SPANS
from tests.corpora.records import build, check, content, records, write
from tests.raises import raises

KINDS = ("jsonl", "gz", "zst", "parquet")


@settings(max_examples=25)
@given(
    st.lists(st.tuples(records(), st.sampled_from(KINDS)), min_size=1, max_size=3),
    st.integers(300, 4000),
    st.sampled_from(["auto", "dense", "spans"]),
    st.booleans(),
    st.sampled_from(EOS_SPANS),
)
def test_text(files: list[tuple[Any, str]], shard_bytes: int, encoding: str, append: bool, eos_span: str) -> None:
    if not append and not any(record["text"] for found, _ in files for record in found):
        return
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        inputs = [write(root / f"in{i}", found, kind) for i, (found, kind) in enumerate(files)]
        more = {"append_eos": append, "eos_span": eos_span}
        build(inputs, root / "out", shard_input_bytes=shard_bytes, encoding=encoding, **more)
        expected = [record for found, _ in files for record in found]
        check(root / "out", expected, 256 if append else None, eos_span)
        assert verify(root / "out", full=True) == []


@settings(max_examples=25)
@given(records(tokenized=True), st.sampled_from(KINDS), st.integers(300, 4000))
def test_tokens(found: Any, kind: str, shard_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        source, out = write(Path(name) / "in", found, kind), Path(name) / "out"
        build([source], out, vocab_size=301, eos_id=300, shard_input_bytes=shard_bytes)
        check(out, found, 300)
        assert verify(out, full=True) == []


def corpus(count: int = 60) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    result = []
    for i in range(count):
        text = "".join(rng.choice(list("abc €\n"), rng.integers(0, 50)))
        cuts = sorted(rng.integers(0, len(text) + 1, 6).tolist())
        found = [
            {"start": a, "end": b, "concepts": ["animal"]} for a, b in zip(cuts[::2], cuts[1::2], strict=True) if a < b
        ]
        topics = [{"start": 0, "end": len(text), "concepts": [i]}]
        metadata = {"source": "web", "n": i}
        result.append({"id": f"d{i}", "text": text, "spans": found, "spans_topic": topics, "metadata": metadata})
    return result


def test_workers_do_not_matter(tmp_path: Path) -> None:
    found = corpus()
    inputs = [write(tmp_path / kind, found, kind) for kind in KINDS]
    results = []
    for workers in (1, 3):
        out = tmp_path / f"out{workers}"
        summary = build(inputs, out, workers=workers, shard_input_bytes=1500)
        assert summary.documents == 4 * len(found)
        assert summary.shards > 5
        assert summary.tokens == cl.open_dataset(out).num_tokens
        assert [dict(track.parameters) for track in cl.open_dataset(out).tracks.values()] == 3 * [{}]  # as ever
        results.append(content(out))
    assert results[0] == results[1]
    check(tmp_path / "out1", found * 4, 256)


def test_directories_and_moved_inputs_and_a_second_run(tmp_path: Path) -> None:
    found = corpus(10)
    for place in ("a", "b"):
        (tmp_path / place / "deep").mkdir(parents=True)
        write(tmp_path / place / "2", found[5:])
        write(tmp_path / place / "deep" / "3", found)
        write(tmp_path / place / "1", found[:5])
        (tmp_path / place / "notes.txt").write_text("not data")
        build([tmp_path / place], tmp_path / f"out-{place}")
    assert content(tmp_path / "out-a") == content(tmp_path / "out-b")
    check(tmp_path / "out-a", found * 2, 256)
    before = content(tmp_path / "out-b")
    assert build([tmp_path / "b"], tmp_path / "out-b").kept_shards == 1
    others: tuple[dict[str, Any], ...] = {"append_eos": False}, {"vocabularies": {"concepts": ["animal", "other"]}}
    for more in others:
        with raises(ConfigError, found="a complete dataset of other", fix="nothing was changed"):
            build([tmp_path / "b"], tmp_path / "out-b", **more)
    assert content(tmp_path / "out-b") == before


def test_progress_adds_up(tmp_path: Path) -> None:
    inputs = [write(tmp_path / kind, corpus(30), kind) for kind in KINDS]
    news: list[Any] = []
    totals: list[tuple[int, int]] = []

    def watch(total: int, done: int) -> Any:
        totals.append((total, done))
        return news.append

    summary = build(inputs, tmp_path / "out", shard_input_bytes=700, watch=watch)
    ((total, done),) = totals
    assert done == 0
    assert sum(one.documents for one in news) == summary.documents == 120
    assert sum(one.tokens for one in news) == summary.tokens
    assert all(one.bytes >= 0 for one in news)
    assert sum(one.bytes for one in news) == total


def test_the_build_in_python_has_what_the_command_has(tmp_path: Path) -> None:
    """The same dataset, byte by byte."""
    source, out = tmp_path / "text.jsonl", tmp_path / "python"
    spans = [
        {"start": 0, "end": 3, "concepts": [1], "scores": [0.5]},
        {"start": 1, "end": 2, "concepts": [0], "scores": [1]},
    ]
    source.write_text(json.dumps({"id": "a", "text": "red cat", "spans": spans}) + "\n" + '{"id": 5.5, "text": ""}\n')
    command = ["build", str(source), "--out", str(tmp_path / "command"), "--tokenizer", "bytes", "--workers", "1"]
    command += ["--scores", "concepts=f2", "--bos", "10", "--no-eos", "--overlap", "union"]
    command += ["--mode", "document", "--bad-records", str(tmp_path / "bad"), "--shard-input-bytes", "1000"]
    assert main(command) == 0
    out.mkdir()
    bad: list[tuple[str, str, str]] = []
    summary = cl.build(
        source, out, tokenizer="bytes", scores={"concepts": "f2"}, bos=10, no_eos=True,
        overlap="union", mode="document", shard_input_bytes=1000, on_bad=lambda *found: bad.append(found),
    )  # fmt: skip
    assert (summary.documents, summary.kept_shards) == (1, 0)
    assert [where for _, where, _ in bad] == ["line 2"]
    names = sorted(file.name for file in out.iterdir() if not file.name.startswith("."))
    assert names == sorted(file.name for file in (tmp_path / "command").iterdir() if not file.name.startswith("."))
    assert all((out / name).read_bytes() == (tmp_path / "command" / name).read_bytes() for name in names)
    with raises(ConfigError, "scores", "track 'other'"):
        cl.build(source, tmp_path / "other", tokenizer="bytes", scores={"other": "f2"})
    assert cl.verify(out) == []
