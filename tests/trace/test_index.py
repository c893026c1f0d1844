"""The concept index says what a walk through the track says, whoever wrote it, and refuses to say anything else."""

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read import concepts
from conceptloader.format.read import index as ix
from conceptloader.format.read.index import open_index
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import index as write
from conceptloader.trace import locate_where
from conceptloader.trace.index import build_index
from tests.corpora.small import written
from tests.raises import cells, raises

CONCEPTS = 12


@pytest.fixture(scope="module", params=["spans", "dense"])
def made(request, tmp_path_factory):
    raw = random_documents(120, seed=4, mean_length=60, tracks={"concepts": CONCEPTS, "quality": 3})
    folder = tmp_path_factory.mktemp(request.param)
    return Path(write_dataset(folder / "data", raw, shards=4, encoding=request.param))


@pytest.fixture
def dataset(made, tmp_path):
    """A copy of its own."""
    return Path(shutil.copytree(made, tmp_path / "data"))


def walked(path, track):
    """The spans of every concept, one after the other."""
    found = [[] for _ in range(CONCEPTS)]
    with cl.open_dataset(path) as dataset:
        spans = dataset.spans(track, 0, dataset.num_tokens)
        for start, end, ids in zip(spans.start.tolist(), spans.end.tolist(), spans.decode(), strict=True):
            for concept in set(ids.tolist()):
                found[concept].append((start, end))
    return found


def bytes_of(directory):
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir()) if file.is_file()}


@pytest.mark.parametrize("rows", [11, 1 << 20])
@pytest.mark.parametrize("encoding", ["spans", "dense"])
@pytest.mark.parametrize("parameters", [{}, {"ids": "u2"}, {"ids": "u2", "scores": "f2"}, {"scores": "f4"}], ids=str)
def test_spans_are_those_of_the_track(tmp_path, rows, encoding, parameters, monkeypatch):
    """In several row groups, too."""
    monkeypatch.setattr(concepts, "_CHUNK_TOKENS", 37)
    monkeypatch.setattr(write, "_ROW_GROUP", rows)

    def documents(shard):
        for document in random_documents(30, seed=shard, mean_length=40, tracks={"concepts": CONCEPTS}):
            spans = document.spans["concepts"]
            scored = [(a, b, (ids, [0.5] * len(ids))) for a, b, ids in spans]
            yield document.tokens, {"concepts": scored if "scores" in parameters else spans}

    track = {"encoding": encoding, "parameters": parameters, "vocabulary": [f"c{i}" for i in range(CONCEPTS)]}
    path = written(tmp_path / "data", documents(0), documents(1), tracks={"concepts": track})
    index, expected = build_index(path), walked(path, "concepts")
    assert any(expected)
    for concept, wanted in enumerate([*expected, []]):
        start, end = index.spans(concept)
        assert list(zip(start.tolist(), end.tolist(), strict=True)) == wanted
    file = parquet.ParquetFile(Path(ix.index_directory(str(path), "concepts")) / "00000.parquet")
    assert file.num_row_groups == -(-file.metadata.num_rows // rows)


def test_the_number_of_workers_and_pieces_changes_no_byte(made, dataset, monkeypatch):
    build_index(dataset)
    directory = Path(ix.index_directory(str(dataset), "concepts"))
    expected = bytes_of(directory)
    assert len(expected) == 4 + 2
    if "dense" not in str(made):
        shutil.rmtree(directory)
        build_index(dataset, workers=2)
        assert bytes_of(directory) == expected
    monkeypatch.setattr(concepts, "_CHUNK_TOKENS", 37)
    shutil.rmtree(directory)
    build_index(dataset)
    assert bytes_of(directory) == expected


@pytest.mark.slow
def test_a_killed_build_leaves_no_index(tmp_path):
    raw = random_documents(1500, seed=4, mean_length=60, tracks={"concepts": CONCEPTS})
    path = Path(write_dataset(tmp_path / "data", raw, shards=40))
    directory = Path(ix.index_directory(str(path), "concepts"))
    command = [sys.executable, "-m", "conceptloader", "index", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while len(list(path.glob(".*.tmp/*.parquet"))) < 5:
        assert process.poll() is None, "too fast to be killed"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not directory.exists()
    with cl.open_dataset(path) as found:
        assert open_index(found, "concepts") is None
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert not [one for one in path.iterdir() if one.name.endswith(".tmp")]
    done = bytes_of(directory)
    shutil.rmtree(directory)
    directory.mkdir()
    with raises(FormatError, directory, "no index.json"):
        build_index(path)
    directory.rmdir()
    build_index(path)
    assert bytes_of(directory) == done


def answers(path):
    """All that an index says."""
    with cl.open_dataset(path) as found:
        index = open_index(found, "concepts")
        return [[column.tolist() for column in index.spans(concept)] for concept in range(CONCEPTS)]


def test_every_damage_is_refused_or_changes_nothing(made, tmp_path):
    """In any file: the last byte, one byte less, and bytes all over it."""
    shutil.copytree(made, tmp_path / "data")
    build_index(tmp_path / "data")
    expected = answers(tmp_path / "data")
    for name in ("index.json", "concepts.parquet", "00002.parquet"):
        file = Path(ix.index_directory(str(tmp_path / "data"), "concepts")) / name
        data = file.read_bytes()
        for broken in (data[:-1], data[:-1] + bytes([data[-1] ^ 1])):
            file.write_bytes(broken)
            with pytest.raises(FormatError):
                answers(tmp_path / "data")
        for at in range(0, len(data), 1 + len(data) // 60):
            file.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            with contextlib.suppress(FormatError):
                assert answers(tmp_path / "data") == expected, f"byte {at} of {name} changes an answer"
        file.write_bytes(data)


def test_damage_of_the_dataset_and_an_index_of_another_one(tmp_path):
    raw = random_documents(60, seed=4, mean_length=40, tracks={"concepts": CONCEPTS})
    path = Path(write_dataset(tmp_path / "data", raw, shards=2))
    build_index(path)
    directory = Path(ix.index_directory(str(path), "concepts"))
    other = write_dataset(tmp_path / "other", random_documents(30, seed=9, tracks={"concepts": CONCEPTS}))
    shutil.copytree(directory, ix.index_directory(other, "concepts"))
    with cl.open_dataset(other) as found, pytest.raises(FormatError, match="the dataset as it is now"):
        open_index(found, "concepts")
    assert build_index(other) is not None
    shutil.rmtree(directory)
    for file in path.glob("*.concepts.data"):
        file.write_bytes(b"\xff" * file.stat().st_size)
    with raises(FormatError, "concepts.data"):
        build_index(path)


NOTHING = """
'concept-1' in concepts) or ('concept-2' in concepts | syntax error | SQL
'concept-1' in concepts and | syntax error | SQL
'concept-1' in concepts or 'red' in concepts | 'red' of the track 'concepts' | its 6 names
'concept-1' in concepts or tokens > 3 | tokens | 'NAME' in TRACK
'concept-1' in concepts and count(*) > 0 | count_star | 'NAME' in TRACK
'concept-1' in concepts and (select true) | subquery | 'NAME' in TRACK
concepts | concepts | 'NAME' in TRACK
true | true | 'NAME' in TRACK
score(concepts, 'concept-1') > 0.5 | without scores | a track with scores
'red' in colour | colour | tracks of concepts: concepts, quality
"""


@pytest.mark.parametrize(("asked", "found", "expected"), [("", "SELECT clause", "SQL"), *cells(NOTHING)])
def test_expressions_of_nothing(run, asked, found, expected):
    with raises(ConfigError, "where", found, expected):
        list(locate_where(run, asked))
