"""Builds by datatrove's local executor: workers, restarts and kills change no byte."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from datatrove.data import Document

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError, InputError
from conceptloader.format.tools.verify import verify
from conceptloader.ingest.records.tokenizer_folder import TokenizerFolder
from conceptloader.integrations.datatrove_lib import ConceptStreamFinalize
from tests.corpora.records import write_rows
from tests.corpora.tokenizers import END
from tests.datatrove import steps
from tests.ingest.test_special_tokens import with_marks
from tests.raises import raises


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steps.build(tmp_path_factory.mktemp("one"), workers=1)


def test_number_of_workers_changes_no_byte(expected: Path, tmp_path: Path) -> None:
    """One shard for each task, named by its rank."""
    assert content(steps.build(tmp_path, workers=3, batch_documents=3)) == content(expected)
    assert verify(expected, full=True) == []
    ds = cl.open_dataset(expected)
    assert ds.manifest.shards.path == ["00000", "00001", "00002", "00003", "00004"]
    order = [number for rank in range(steps.TASKS) for number in range(rank, steps.DOCUMENTS, steps.TASKS)]
    assert [ds.document_id(i) for i in range(ds.num_documents)] == [f"d{number}" for number in order]


def test_equals_our_own_build(tmp_path: Path) -> None:
    """One task gives the files that `conceptloader build` writes for the same documents."""
    rows = [steps.record(i) for i in range(steps.DOCUMENTS)]
    write_rows(tmp_path / "corpus.jsonl", rows)
    columns = cl.writing.Columns(tracks={"concepts": "spans"}, metadata_columns=("url",))
    names = {"concepts": ["noun", "number"]}
    cl.build(tmp_path / "corpus.jsonl", tmp_path / "own", columns=columns, tokenizer="bytes", vocabularies=names)
    writer = steps.writer(tmp_path / "one", batch_documents=7)
    writer.run(steps.Reader().run())
    ConceptStreamFinalize(tmp_path / "one").run()
    own, other = content(tmp_path / "own"), content(tmp_path / "one")
    assert own.keys() == other.keys()
    different = {name for name in own if own[name] != other[name]}
    assert different == {"build.json", "manifest.json", "00000.shard.json"}  # where the documents came from


def test_killed_and_restarted(expected: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.datatrove.steps", str(tmp_path)]
    with subprocess.Popen([*command, "0.05"], start_new_session=True, stderr=subprocess.DEVNULL) as process:
        while not list(tmp_path.glob("ds/*.shard.json")):
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert not (tmp_path / "ds" / "manifest.json").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("ds/*.shard.json")}
    subprocess.run([*command, "0"], check=True, stderr=subprocess.DEVNULL)
    assert content(tmp_path / "ds") == content(expected)
    assert {name: (tmp_path / "ds" / name).stat().st_mtime_ns for name in kept} == kept


def test_bad_documents(expected: Path, tmp_path: Path) -> None:
    """A task that fails is run again alone; or what is bad is left out."""
    with raises(InputError, "task 2: document 'd7': concepts", "span [0, 999)"):
        steps.build(tmp_path, workers=1, reader=steps.Reader(bad=7))
    assert not (tmp_path / "ds" / "manifest.json").exists()
    assert content(steps.build(tmp_path, workers=1)) == content(expected)
    steps.writer(tmp_path / "some", skip_bad=True).run(steps.Reader(bad=7).run())
    ConceptStreamFinalize(tmp_path / "some").run()
    ds = cl.open_dataset(tmp_path / "some")
    assert (ds.num_documents, ds.find_document("d7")) == (steps.DOCUMENTS - 1, [])
    documents = [Document("a", "d1", metadata={"url": {"n": 1}}), Document("b", "d2", metadata={"url": {1: "n"}})]
    with raises(InputError, "task 0: document 'd2': "):
        steps.writer(tmp_path / "keys").run(documents)


def test_a_complete_dataset_is_left_alone(expected: Path) -> None:
    before = content(expected)
    ConceptStreamFinalize(expected).run()
    steps.writer(expected).run(iter(()), rank=3, world_size=steps.TASKS)
    with raises(ConfigError, found="complete dataset of other options or another number of tasks"):
        steps.writer(expected).run(iter(()), rank=0, world_size=2)
    with raises(ConfigError, found="complete dataset of other options"):
        steps.writer(expected, append_eos=False).run(iter(()), rank=0, world_size=steps.TASKS)
    assert content(expected) == before


def test_lost_spans_are_counted_over_all_tasks(tmp_path: Path) -> None:
    """In the shards' records, equal to those of our own build; refused by the last step unless allowed."""
    lost = [{"start": 3, "end": 3, "concepts": ["noun"]}]
    out = tmp_path / "ds"
    for rank in range(2):
        rows = [Document("some text", f"d{rank}{i}", metadata={"marks": lost if i < 2 else []}) for i in range(5)]
        steps.writer(out, batch_documents=rank + 1).run(iter(rows), rank=rank, world_size=2)
    with pytest.raises(InputError, match=r"track 'concepts': found 4 of 4 spans .* document 'd00' .*'d01' .*'d10'"):
        ConceptStreamFinalize(out).run()
    assert not (out / "manifest.json").exists()
    ConceptStreamFinalize(out, max_unaligned_spans=1).run()
    assert cl.open_dataset(out).num_documents == 10
    with raises(ConfigError, "max_unaligned_spans", "5"):
        ConceptStreamFinalize(out, max_unaligned_spans=5)


@pytest.mark.parametrize(("eos_span", "held"), [("none", 4), ("last", 5)])
def test_rules_are_those_of_a_build(tmp_path: Path, eos_span: str, held: int) -> None:
    rows = [Document("some text", "d0", metadata={"marks": [{"start": 5, "end": 9, "concepts": ["noun"]}]})]
    steps.writer(tmp_path / "ds", eos_span=eos_span, align="majority").run(iter(rows))
    ConceptStreamFinalize(tmp_path / "ds").run()
    made = cl.open_dataset(tmp_path / "ds")
    spans = made.spans("concepts", 0, made.num_tokens)
    assert (spans.end - spans.start).tolist() == [held]
    assert made.manifest.extra["ingest"]["align"] == "majority"
    with raises(ConfigError, found="complete dataset of other options"):
        steps.writer(tmp_path / "ds", eos_span=eos_span).run(iter(rows))


def test_tasks_of_several_rules_for_special_tokens_are_refused(tmp_path: Path) -> None:
    """Before the second one is written; and at the end, where two began at once."""
    (tmp_path / "tokenizer.json").write_text(with_marks().to_str())

    def write(rank: int, rule: str, out: str) -> None:
        step = steps.ConceptStreamWriter(tmp_path / out, str(tmp_path / "tokenizer.json"), special_tokens=rule)
        step.run([Document("the <|im_end|> cat", "d")], rank=rank, world_size=2)

    for out in ("some", "other"):
        write(0, "text" if out == "some" else "control", out)
        write(1, "text" if out == "some" else "control", out)
    (tmp_path / "some" / "00001.shard.json").unlink()
    with raises(ConfigError, "some: special_tokens", "a shard by the rule 'text'", "'control'"):
        write(1, "control", "some")
    for path in (tmp_path / "other").glob("00001.*"):
        path.replace(tmp_path / "some" / path.name)
    with raises(ConfigError, "some: special_tokens", "a shard by the rule 'control'", "'text'"):
        ConceptStreamFinalize(tmp_path / "some").run()
    assert not (tmp_path / "some" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "or end with '<|endoftext|>' as text"),
        ({"special_tokens": "control"}, "end with the eos already"),
        ({"special_tokens": "control", "eos": END}, None),
        ({"special_tokens": "text"}, None),
    ],
)
def test_documents_that_end_already_need_a_choice(options: dict[str, str], problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(with_marks().to_str())
    step = steps.ConceptStreamWriter(tmp_path / "out", str(tmp_path / "tokenizer.json"), **options)
    documents = [Document(f"the cat{END}", "d")] * 3
    if problem is None:
        step.run(documents)
        assert step.stats["documents that end twice"].total == (3 if "eos" in options else 0)
    else:
        with raises(InputError, "shard 00000", problem):
            step.run(documents)


def test_the_task_that_begins_a_build_compares_the_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[None] = []
    monkeypatch.setattr(TokenizerFolder, "compare", lambda *_: compared.append(None))
    (tmp_path / "tokenizer.json").write_text(with_marks().to_str())
    for rank in (1, 0, 1):
        step = steps.ConceptStreamWriter(tmp_path / "out", str(tmp_path), eos=END)
        step.run([Document("a", "d")], rank=rank, world_size=2)
    assert len(compared) == 1


def test_mistakes_are_found(tmp_path: Path) -> None:
    steps.writer(tmp_path / "ds").run(iter(()), rank=0, world_size=2)
    with pytest.raises(ConfigError, match="found a build of another plan"):
        steps.writer(tmp_path / "ds").run(iter(()), rank=1, world_size=3)
    with raises(FormatError, found="1 of 2 shards missing"):
        ConceptStreamFinalize(tmp_path / "ds").run()
    with raises(ConfigError, found="2 tasks"):
        ConceptStreamFinalize(tmp_path / "ds").run(rank=0, world_size=2)
    with raises(ConfigError, "tokenizer nowhere", "no such file"):
        steps.ConceptStreamWriter(tmp_path / "other", "nowhere").run(iter(()))
