"""What the page is told, compared with plain loops over the data and the order."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.tools.stats import dataset_stats
from conceptloader.index.build import build_index
from conceptloader.index.reader import index_directory
from conceptloader.ingest.records.tokenizer import load_tokenizer
from conceptloader.order.progress.runlog import History
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import Run
from conceptloader.viewer import corpus
from conceptloader.viewer.pages import PAGES
from conceptloader.viewer.source import Looked, Query, alone
from conceptloader.viewer.windows import nested, pieces
from tests.corpora.blended import tokens_of
from tests.corpora.small import written
from tests.corpora.tokenizers import FAMILIES, definition
from tests.view.conftest import SEQ_LEN

TEXTS = ["the red cat sat", "größer 😀 naïve café", "日本語 テキスト\u3000です", "a\n\n\tb  c", "😀😀😀", "ﬁne <tag> x"]


def ask(looked: Looked, name: str, **values: object) -> Any:
    """An answer, as it arrives."""
    return json.loads(json.dumps(PAGES[name](looked, Query({k: str(v) for k, v in values.items()}))))


@pytest.mark.parametrize("family", ["bytes", *FAMILIES])
def test_pieces_are_the_text_of_the_tokens(family: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"" if family == "bytes" else definition(family))
    tokenizer = load_tokenizer("bytes" if family == "bytes" else str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        ids = tokenizer.encode([text], [False])[0].values.tolist()
        found = pieces(tokenizer, ids)
        assert len(found) == len(ids)
        assert "".join(found) == tokenizer.decode(ids), text
    cut = tokenizer.encode(["日本語 😀"], [False])[0].values.tolist()
    for start in range(len(cut)):
        for stop in range(start, len(cut)):
            assert len(pieces(tokenizer, cut[start:stop])) == stop - start


def test_nested_spans_have_levels_of_their_own() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        starts = rng.integers(0, 40, 12)
        spans = [{"t": "t", "c": k, "s": int(s), "e": int(s + rng.integers(1, 12))} for k, s in enumerate(starts)]
        found = nested(spans)
        for token in range(60):
            here = [span["level"] for span in found if span["s"] <= token < span["e"]]
            assert len(here) == len(set(here))
        assert [span["s"] for span in found] == sorted(span["s"] for span in spans)
    outer, inner = nested([{"t": "", "c": 1, "s": 2, "e": 4}, {"t": "", "c": 0, "s": 0, "e": 9}])
    assert (outer["c"], outer["level"], inner["level"]) == (0, 0, 1)


def test_a_span_in_pieces_is_one_again(looked: Looked) -> None:
    """Overlapping spans are stored as runs with the union of their concepts."""
    for name, source in looked.sources.items():
        for number in range(0, 30, 3):
            (document,) = source.dataset.find_document(f"{name}-{number}")
            found = ask(looked, "document", d=name, n=document)
            text = "".join(found["pieces"])
            spans = {span["n"]: span for span in found["spans"]}
            assert text[spans["animal"]["s"] : spans["animal"]["e"]] == "bird"
            assert (spans["clause"]["s"], len(text[: spans["clause"]["e"]].split())) == (0, 8)


@pytest.mark.parametrize("indexed", [False, True])
def test_windows_of_a_concept(looked: Looked, indexed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the index no span of a track is read; the chunks grow, and whatever their size the answers are the same."""
    expected: dict[tuple[str, int], list[dict[str, int]]] = {}
    for name, source in looked.sources.items():
        for concept, i in itertools.product(range(3), range(source.count)):
            start, stop = source.token_range(i)
            spans = source.dataset.spans("concepts", start, stop - 1)
            having = [concept in record.tolist() for record in spans.decode()]
            tokens = int((spans.end - spans.start)[having].sum()) if any(having) and source.is_read(i) else 0
            expected.setdefault((name, concept), []).extend([{"i": i, "tokens": tokens}] if tokens else [])
        if indexed:
            build_index(source.dataset.path)
    monkeypatch.setattr(corpus, "_CHUNK", 3 * SEQ_LEN)
    if indexed:
        monkeypatch.setattr(Ranges, "span_places", None)
    for (name, concept), hits in expected.items():
        first = ask(looked, "concept", d=name, c=concept)
        found = list(first["hits"])
        while first["next"] is not None:
            first = ask(looked, "concept", d=name, c=concept, **{"from": first["next"]})
            found += first["hits"]
        assert found == hits
    for source in looked.sources.values():
        shutil.rmtree(index_directory(source.dataset.path, "concepts"), ignore_errors=True)


def test_statistics_are_those_of_the_command(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = looked.sources["books"].dataset
    whole = ask(looked, "stats", d="books")
    expected = json.loads(json.dumps(dataset_stats(dataset)))
    for track in whole["tracks"].values():
        (pair,) = track.pop("pairs")
        assert pair["names"] == ["clause", "animal"]
    assert (
        whole.items() >= {key: expected[key] for key in ("tokens", "documents", "document_lengths", "tracks")}.items()
    )
    assert whole["whole"]
    listed = ask(looked, "concepts", d="books")
    assert listed["whole"]
    shares = {one["name"]: one["share_of_tokens"] for one in expected["tracks"]["concepts"]["concepts"]}
    assert {one["name"]: one["share"] for one in listed["concepts"]} == {"plant": 0, **shares}
    monkeypatch.setattr(corpus, "SMALL", 0)
    monkeypatch.setattr(corpus, "_SECONDS", 60)  # as if it were large, and read as a whole all the same
    some = ask(looked, "stats", d="books")
    assert not some["whole"]
    assert some["document_lengths"] == expected["document_lengths"]
    shares = {one["name"]: one["share_of_tokens"] for one in some["tracks"]["concepts"]["concepts"]}
    for one in expected["tracks"]["concepts"]["concepts"]:
        assert shares[one["name"]] == pytest.approx(one["share_of_tokens"], rel=0.02)
    found = ask(looked, "concepts", d="books")
    assert [one["name"] for one in found["concepts"]] == ["clause", "animal", "plant"]
    assert found["not_seen"] == 1
    assert [one["share"] for one in found["concepts"]][2] is None  # not sampled is not 0


def test_when_a_window_is_seen(looked: Looked) -> None:
    order = looked.run.blend.order
    planned: dict[tuple[int, int], list[int]] = {}
    for sample in range(looked.horizon):
        index, _, window = order.sample(sample)
        planned.setdefault((index, window), []).append(sample)
    for source in looked.sources.values():
        for window in range(0, source.count, 5):
            found = ask(looked, "seen", d=source.name, i=window)
            expected = planned.get((source.index, window), []) if source.is_read(window) else []
            assert [one["sample"] for one in found["seen"]] == expected
            steps = [place["step"] for one in found["seen"] for place in one["places"]]
            assert steps == [sample // 8 for sample in expected]


def test_where_the_run_is(folder: Path, looked: Looked) -> None:
    file = folder / "checkpoints/latest.txt"
    assert looked.position() == (12, 96, "the last checkpoint (latest.txt)")
    try:
        for content in (b"", b"release", b"\xff", b"-3", b"1" * 41):
            file.write_bytes(content)
            found = looked.position()
            assert found is not None
            assert found[:2] == (0, 0)
    finally:
        file.write_text("12")


def test_other_kinds_of_datasets(tmp_path: Path) -> None:
    """Documents, tracks of records, none at all; a tokenizer that is not there."""
    documents = random_documents(20, seed=1, mean_length=30)
    as_documents = alone(cl.open_dataset(write_dataset(tmp_path / "documents", documents, mode="document")), 64)
    found = ask(as_documents, "window", i=3)
    assert found["ids"] == documents[3].tokens[:65]
    assert found["by_document"]
    assert found["pieces"] is None
    assert ask(as_documents, "concept", c=2)["hits"]
    assert ask(as_documents, "about")["run"] is None
    document = [1, 2, 3, 4], {"notes": [(0, 3, {"a": [1.5, None]})], "code": [(0, 1, print)]}
    tracks = {"notes": {"codec": "json"}, "code": {"codec": "pickle"}}
    records = alone(cl.open_dataset(written(tmp_path / "records", [document], tracks=tracks)), 2)
    (span,) = ask(records, "window")["spans"]
    assert (span["t"], span["c"], span["a"]) == ("notes", "{'a': [1.5, None]}", False)
    assert ask(records, "stats")["tracks"]["notes"]["spans"] == 1
    for name in ("concepts", "mixture", "step"):
        with pytest.raises(ConfigError, match="expected"):
            ask(records, name)


def test_other_kinds_of_runs(tmp_path: Path) -> None:
    """Evaluation in sequence, samples that are documents; a dataset that is there twice."""
    write_dataset(tmp_path / "stream", random_documents(20, seed=1, mean_length=30))
    write_dataset(tmp_path / "documents", random_documents(20, seed=2, mean_length=30), mode="document")
    both = {"path": str(tmp_path / "stream"), "weight": 1}
    configs: list[tuple[int, dict[str, Any]]] = [
        (0, {"order": "sequential", "datasets": {"a": {"path": str(tmp_path / "stream")}}}),
        (0, {"datasets": {"a": {"path": str(tmp_path / "documents")}}}),
        (1, {"datasets": {"a": {**both, "split": [0, 0.5]}, "b": {**both, "split": [0.5, 1]}}}),
    ]
    for k, config in configs:
        run = Run(blend=cl.open_blend({"seq_len": 16, **config}))
        partition = cl.adapters.Partition(micro_batch_size=2, dp_size=1)
        start = cl.adapters.RunStart.of(run.blend.spec, cl.adapters.BatchSchedule.constant(2), partition, 16)
        looked = Looked(title="run", run=dataclasses.replace(run, history=History([start])))
        source = list(looked.sources.values())[k]
        order = run.blend.order
        mixture = ask(looked, "mixture")
        assert mixture["samples"] == looked.horizon == sum(order.sizes)
        assert [one["counts"][-1] for one in mixture["members"]] == order.counts(looked.horizon)
        for sample in range(5):
            index, epoch, window = order.sample(sample)
            shown = ask(looked, "window", n=sample)
            assert (shown["d"], shown["i"]) == (run.name(index), window)
            assert shown["ids"] == tokens_of(run.blend, sample)[:17]
            (seen,) = ask(looked, "seen", d=shown["d"], i=window, until=sample + 1)["seen"]
            assert (seen["sample"], seen["epoch"], seen["places"][0]["step"]) == (sample, epoch, sample // 2)
        step = ask(looked, "step", n=1)
        assert [one["sample"] for one in step["samples"]] == [2, 3]
        assert step["problems"] == []
        assert len(step["documents"]) == 2
        document = ask(looked, "document", d=source.name, n=source.dataset.num_documents - 1)
        for window in document["windows"]:
            numbers = [one["n"] for one in ask(looked, "window", d=source.name, i=window)["documents"]]
            assert document["n"] in numbers
