"""The concept index says what a walk through the track says, whoever wrote it, and refuses to say anything else."""

import contextlib
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format import index as ix
from conceptloader.format.index import open_index
from conceptloader.ingest import index as write
from conceptloader.ingest.index import build_index
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import Run, parse_where, when_concept, when_where
from conceptloader.trace.where import Where
from tests.raises import raises
from tests.trace.conftest import NUM_SAMPLES, SEQ_LEN
from tests.trace.test_when import concepts

CONCEPTS = 12


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    raw = random_documents(120, seed=4, mean_length=60, tracks={"concepts": CONCEPTS, "quality": 3})
    return Path(write_dataset(tmp_path / "data", raw, shards=4, encoding="spans"))


def walked(path: Path, track: str) -> list[list[tuple[int, int]]]:
    """The spans of every concept, one after the other."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(CONCEPTS)]
    with cl.open_dataset(path) as dataset:
        spans = dataset.spans(track, 0, dataset.num_tokens)
        for start, end, ids in zip(spans.start.tolist(), spans.end.tolist(), spans.decode(), strict=True):
            for concept in set(ids.tolist()):
                found[concept].append((start, end))
    return found


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir()) if file.is_file()}


def check_spans_and_counts(dataset: Path, track: str) -> None:
    index = build_index(dataset, track)
    assert index is not None
    for concept, expected in enumerate(walked(dataset, track)):
        start, end = index.spans(concept)
        assert list(zip(start.tolist(), end.tolist(), strict=True)) == expected
        assert index.count(concept) == (len(expected), sum(b - a for a, b in expected))
    assert index.spans(CONCEPTS + 5)[0].tolist() == []
    tokens = [{t for a, b in spans for t in range(a, b)} for spans in walked(dataset, track)]
    asked = [0, 1, 2]
    assert index.together(asked).tolist() == [[len(tokens[a] & tokens[b]) for b in asked] for a in asked]
    assert index.together(asked)[0, 1] > 0


def test_the_number_of_tasks_workers_and_pieces_changes_no_byte(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(dataset)
    directory = Path(ix.index_directory(str(dataset), "concepts"))
    expected = bytes_of(directory)
    assert len(expected) == 4 + 2
    for tasks in (3, 9):
        shutil.rmtree(directory)
        for task in reversed(range(tasks)):
            assert build_index(dataset, task=(task, tasks)) is None
        build_index(dataset)
        assert bytes_of(directory) == expected, tasks
    build_index(dataset, anew=True, workers=2)
    assert bytes_of(directory) == expected
    monkeypatch.setattr(ix, "_CHUNK_TOKENS", 37)
    build_index(dataset, anew=True)
    assert bytes_of(directory) == expected


def test_spans_and_counts_are_those_of_the_track(dataset: Path) -> None:
    check_spans_and_counts(dataset, "concepts")


def test_large_shards_have_several_row_groups(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ix, "_CHUNK_TOKENS", 37)
    monkeypatch.setattr(write, "_ROW_GROUP", 11)
    check_spans_and_counts(dataset, "quality")
    file = parquet.ParquetFile(Path(ix.index_directory(str(dataset), "quality")) / "00000.parquet")
    assert file.num_row_groups == -(-file.metadata.num_rows // 11) > 3


@pytest.mark.slow
def test_a_killed_build_goes_on(tmp_path: Path) -> None:
    raw = random_documents(900, seed=4, mean_length=60, tracks={"concepts": CONCEPTS})
    path = Path(write_dataset(tmp_path / "data", raw, shards=24))
    directory = Path(ix.index_directory(str(path), "concepts"))
    command = [sys.executable, "-m", "conceptloader", "index", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while len(list(directory.glob("*.json"))) < 5:
        assert process.poll() is None, "too fast to be killed"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (directory / ix.HEAD).exists()
    (directory / ".00007.parquet.0123456789abcdef.tmp").touch()  # whether the kill left one or not
    (directory / ".spill.0123456789abcdef.tmp").mkdir(exist_ok=True)
    (directory / ".spill.0123456789abcdef.tmp" / "duckdb_temp_storage-0.tmp").touch()
    kept = {file.stem: (directory / f"{file.stem}.parquet").stat().st_ino for file in directory.glob("*.json")}
    with cl.open_dataset(path) as found:
        assert open_index(found, "concepts") is None
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    done = bytes_of(directory)
    again = {file.stem: file.stat().st_ino for file in directory.glob("*.parquet")}
    assert sum(again[name] == inode for name, inode in kept.items()) >= 5
    build_index(path, anew=True)
    assert bytes_of(directory) == done
    assert not [name for name in done if name.endswith(".tmp")]


def test_a_missing_shard_is_named(dataset: Path) -> None:
    for task in (0, 1):
        build_index(dataset, task=(task, 3))
    with cl.open_dataset(dataset) as found, raises(FormatError, found="no spans of 1 shards, the first is 2"):
        write.join_shards(found, "concepts")


def answers(path: Path) -> list[Any]:
    """All that an index says."""
    with cl.open_dataset(path) as found:
        index = open_index(found, "concepts")
        assert index is not None
        spans = [[column.tolist() for column in index.spans(concept)] for concept in range(CONCEPTS)]
        return [*spans, *(column.tolist() for column in index.counts())]


@pytest.mark.parametrize("name", ["index.json", "concepts.parquet", "00002.parquet"])
@pytest.mark.parametrize("where", ["middle", "last", "cut"])
def test_every_damage_is_refused(dataset: Path, name: str, where: str) -> None:
    build_index(dataset)
    file = Path(ix.index_directory(str(dataset), "concepts")) / name
    data = bytearray(file.read_bytes())
    if where == "cut":
        del data[-1]
    else:
        data[{"middle": len(data) // 2, "last": -1}[where]] ^= 1
    file.write_bytes(data)
    with pytest.raises(FormatError):
        answers(dataset)


@pytest.mark.parametrize("name", ["concepts.parquet", "00000.parquet"])
def test_every_byte_is_compared(tmp_path: Path, name: str) -> None:
    raw = random_documents(30, seed=4, mean_length=30, tracks={"concepts": CONCEPTS})
    path = Path(write_dataset(tmp_path / "data", raw))
    build_index(path)
    file = Path(ix.index_directory(str(path), "concepts")) / name
    data, expected = file.read_bytes(), answers(path)
    for at in range(0, len(data), 3):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with contextlib.suppress(FormatError):
            assert answers(path) == expected, f"byte {at} changes an answer"


def test_every_byte_of_a_part_is_compared_before_it_is_joined(tmp_path: Path) -> None:
    raw = random_documents(60, seed=4, mean_length=40, tracks={"concepts": CONCEPTS})
    path = Path(write_dataset(tmp_path / "data", raw, shards=2))
    build_index(path)
    directory, expected, kept = Path(ix.index_directory(str(path), "concepts")), answers(path), tmp_path / "kept"
    shutil.rmtree(directory)
    build_index(path, task=(0, 1))
    directory.rename(kept)
    data = (kept / "00000.concepts.parquet").read_bytes()
    for at in range(0, len(data), 41):
        shutil.copytree(kept, directory)
        (directory / "00000.concepts.parquet").write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with contextlib.suppress(FormatError):
            build_index(path)
            assert answers(path) == expected, f"byte {at} changes an answer"
        shutil.rmtree(directory)


def test_damage_of_the_dataset_stays_what_it_is(dataset: Path) -> None:
    for file in dataset.glob("*.concepts.data"):
        file.write_bytes(b"\xff" * file.stat().st_size)
    with raises(FormatError, "concepts.data"):
        build_index(dataset)


def test_an_index_of_another_dataset_is_refused_and_made_anew(dataset: Path, tmp_path: Path) -> None:
    build_index(dataset)
    other = write_dataset(tmp_path / "other", random_documents(30, seed=9, tracks={"concepts": CONCEPTS}))
    shutil.copytree(ix.index_directory(str(dataset), "concepts"), ix.index_directory(other, "concepts"))
    with cl.open_dataset(other) as found, pytest.raises(FormatError, match="expected the dataset as it is now"):
        open_index(found, "concepts")
    assert build_index(other) is not None


@pytest.fixture(scope="module")
def indexed(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run over copies with indices."""
    import dataclasses

    from conceptloader.blend import open_blend

    folder = tmp_path_factory.mktemp("indexed")
    datasets = {}
    for name, entry in run.blend.config.datasets.items():
        shutil.copytree(entry.path, folder / name)
        build_index(folder / name, "concepts")
        build_index(folder / name, "quality")
        datasets[name] = dataclasses.replace(entry, path=str(folder / name))
    return Run(blend=open_blend(dataclasses.replace(run.blend.config, datasets=datasets)), history=run.history)


def rows(run: Run, track: str, concept: Any) -> list[tuple[Any, ...]]:
    seen = when_concept(run, track, concept, NUM_SAMPLES)
    return [(s.sample, s.dataset, s.epoch, s.window, s.inputs, s.labels, tuple(s.places)) for s in seen]


def test_when_answers_alike_with_and_without_an_index(run: Run, indexed: Run) -> None:
    for track, concept in itertools.product(("concepts", "quality"), range(3)):
        expected = rows(run, track, concept)
        assert expected
        assert rows(indexed, track, concept) == expected


@pytest.fixture(scope="module")
def walked_run(run: Run) -> list[list[set[int]]]:
    return [concepts(run, index, "concepts") for index in range(3)]


LEAVES = st.integers(0, 5).map(lambda k: Where("concept", name="concepts", concept=f"concept-{k}"))
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda one: Where("not", (one,))),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)).map(
            lambda pair: Where(pair[0], tuple(pair[1]))
        ),
    ),
    max_leaves=6,
)


def text(where: Where) -> str:
    if where.operator == "concept":
        return "concepts:" + (f"'{where.concept}'" if str(where.concept).endswith(("1", "2")) else str(where.concept))
    if where.operator == "not":
        return f"not ({text(where.parts[0])})"
    return "(" + f" {where.operator} ".join(text(part) for part in where.parts) + ")"


def holds(where: Where, ids: set[int]) -> bool:
    if where.operator == "concept":
        return int(str(where.concept).removeprefix("concept-")) in ids
    inner = [holds(part, ids) for part in where.parts]
    return not inner[0] if where.operator == "not" else (all if where.operator == "and" else any)(inner)


@settings(max_examples=25)
@given(EXPRESSIONS)
def test_booleans_equal_a_walk_through_the_tokens(
    run: Run, indexed: Run, walked_run: list[list[set[int]]], where: Where
) -> None:
    expected = set()
    for sample in range(NUM_SAMPLES):
        index, _, window = run.blend.order.sample(sample)
        first = run.member(index).view.start + window * SEQ_LEN
        has = [holds(where, ids) for ids in walked_run[index][first : first + SEQ_LEN + 1]]
        if any(has):
            expected.add((sample, sum(has[:-1]), sum(has[1:])))
    asked = parse_where(text(where))
    assert asked == where
    for one in (run, indexed):
        assert {(at.sample, at.inputs, at.labels) for at in when_where(one, asked, NUM_SAMPLES)} == expected


@pytest.mark.parametrize(
    ("expression", "column", "problem"),
    [
        ("", 1, "the end"),
        ("a:b and", 8, "the end"),
        ("a:b c", 5, "found 'c', expected and, or, or the end"),
        ("(a:b or a:c", 1, r"found '\(', expected and, or, or the \) of this bracket"),
        ("a:b and or a:c", 9, "found 'or', expected a column"),
        ("a:b and a:'b", 11, "a quote without its end"),
        ("not " * 200 + "a:b", 405, "more than 100 levels"),
        ("a:b)", 4, r"found '\)'"),
        ("a", 2, "found the end, expected : and a concept"),
        ("'a' = 1", 1, "found \"'a'\", expected a column"),
        ("a:", 3, "found the end, expected the name of a concept"),
        ("a: = 3", 4, "found '=', expected the name of a concept"),
        ("a:b > many", 7, "found 'many', expected a number"),
        ("a = b", 5, "found 'b', expected a number, text in single quotes"),
        ("a == 3", 4, "found '=', expected a number"),
        ("a <> 3", 4, "found '>', expected a number"),
        ("a in 3", 6, r"found '3', expected \( and values"),
        ("a in (3 4)", 9, r"found '4', expected ,"),
        ("a not 3", 7, "found '3', expected in"),
        ("a is 3", 6, "found '3', expected null"),
        ("a is not 3", 10, "found '3', expected null"),
        ("and = 3", 1, "found 'and', expected a column"),
        ("1a = 3", 1, "found '1a', expected a column"),
        ("a ! 3", 3, "found '!'"),
    ],
)
def test_expressions_that_are_none(expression: str, column: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"column {column}: .*{problem}"):
        parse_where(expression)


def test_concepts_that_nobody_knows(run: Run) -> None:
    with raises(ConfigError, found="id 6", expected="less than 6"):
        when_concept(run, "concepts", 6)
    with raises(ConfigError, found="'red'", expected="one of 6 names"):
        when_where(run, parse_where("concepts:concept-1 or concepts:red"))
    with raises(ConfigError, "where", "the column 'tokens'"):
        when_where(run, parse_where("concepts:concept-1 or tokens > 3"))
    with raises(ConfigError, "track concepts", "no scores"):
        when_where(run, parse_where("concepts:concept-1 > 0.5"))


def test_the_command(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = dataset.parent / "run.yaml"
    config.write_text(json.dumps({"seq_len": 16, "datasets": {"d": {"path": str(dataset)}}}))

    def answer(*words: object) -> Any:
        assert main([*map(str, words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    expected = answer("when", config, "--concept", "concept-3")
    counted = walked(dataset, "concepts")
    found = answer("index", dataset, "--workers", 1, "--top", 3)
    assert found["concepts"] == CONCEPTS
    best = sorted(range(CONCEPTS), key=lambda c: -sum(b - a for a, b in counted[c]))[0]
    assert (found["top"][0]["id"], found["top"][0]["concept"]) == (best, f"concept-{best}")
    assert found["top"][0]["spans"] == len(counted[best])
    assert answer("when", config, "--concept", "concept-3") == expected
    assert answer("when", config, "--where", "concepts:concept-3 or concepts:concept-3")["seen"] == expected["seen"]
    pairs = answer("index", dataset, "--together", "concept-1", "concept-2")["tokens"]
    assert np.array(pairs).T.tolist() == pairs
    for wrong in (["--concept-id", "12"], ["--where", "concepts:concept-1 and"], ["--where", "concepts:red"]):
        assert main(["when", str(config), *wrong]) == 2
    for wrong in (["--together", "red"], ["--track", "red"], ["--task", "0/2", "--anew"]):
        assert main(["index", str(dataset), *wrong]) == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["spans", "dense"])
@pytest.mark.parametrize("parameters", [{"ids": "u2"}, {"ids": "u2", "scores": "f2"}, {"scores": "f4"}])
def test_ids_of_two_bytes_and_ids_with_scores(tmp_path: Path, encoding: str, parameters: dict[str, str]) -> None:
    track = cl.TrackOptions(encoding=encoding, parameters=parameters, vocabulary=[f"c{i}" for i in range(CONCEPTS)])
    build = cl.create_build(tmp_path / "data", cl.BuildOptions(tracks={"concepts": track}), plan=[0, 1])
    for shard in range(2):
        with build.shard(shard) as writer:
            for document in random_documents(30, seed=shard, mean_length=40, tracks={"concepts": CONCEPTS}):
                spans: list[Any] = [
                    (a, b, (ids, [0.5] * len(ids)) if "scores" in parameters else ids)
                    for a, b, ids in document.spans["concepts"]
                ]
                writer.add_document(document.tokens, {"concepts": spans})
    cl.finalize(build.path)
    index = build_index(build.path, "concepts")
    assert index is not None
    expected = walked(Path(build.path), "concepts")
    assert any(expected)
    for concept, spans in enumerate(expected):
        start, end = index.spans(concept)
        assert list(zip(start.tolist(), end.tolist(), strict=True)) == spans
