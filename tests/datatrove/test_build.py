"""Builds by datatrove's steps: tasks, restarts and kills change no byte."""

import os
import signal
import subprocess
import sys
import time

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, InputError
from conceptloader.integrations.datatrove_lib import ConceptBuild, ConceptBuildFinish
from tests.cli.test_sessions import tokenizers
from tests.corpora.records import write_rows
from tests.datatrove import steps
from tests.raises import raises


def content(path):
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return steps.write_corpus(tmp_path_factory.mktemp("data") / "corpus")


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory):
    """What `conceptloader.build` writes."""
    out = tmp_path_factory.mktemp("own") / "ds"
    assert cl.build(corpus, out, **steps.OPTIONS).shards > steps.TASKS
    return content(out)


def test_a_killed_task_and_two_attempts_of_one_leave_it_whole(corpus, expected, tmp_path):
    out = tmp_path / "ds"
    command = [sys.executable, "-m", "tests.datatrove.steps", str(corpus), str(out)]
    with subprocess.Popen([*command, "0", "1"], start_new_session=True, stderr=subprocess.DEVNULL) as process:
        while not list(out.glob("*.shard.json")) and process.poll() is None:
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
    assert not (out / "manifest.json").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("*.shard.json")}
    attempts = [subprocess.Popen([*command, str(task), "2"]) for task in (0, 0, 1, 0)]
    assert [process.wait() for process in attempts] == [0] * 4
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    ConceptBuildFinish(corpus, out, **steps.OPTIONS).run()
    assert content(out) == expected
    ConceptBuild(corpus, out, **steps.OPTIONS).run(rank=0, world_size=2)  # a task of a dataset that is complete
    assert content(out) == expected


def test_the_last_step_checks_what_all_tasks_wrote(tmp_path):
    """Lost spans of all, and the rule for text that spells a special token."""
    lost = [{"start": 3, "end": 3, "concepts": ["noun"]}]
    rows = [{**steps.record(number), "text": "the <|im_end|> cat", "spans": lost} for number in range(20)]
    write_rows(tmp_path / "rows.jsonl", rows)
    (tmp_path / "tokenizer.json").write_text(tokenizers()["marks/tokenizer.json"])
    options = {**steps.OPTIONS, "tokenizer": str(tmp_path / "tokenizer.json")}

    def step(kind, **more):
        return kind(tmp_path / "rows.jsonl", tmp_path / "ds", **options, **more)

    for rank in range(2):
        step(ConceptBuild, special_tokens="text").run(rank=rank, world_size=2)
    with raises(ConfigError, "build.json", "special_tokens", fix="the same options"):
        step(ConceptBuildFinish, special_tokens="control").run()
    with raises(InputError, "track 'concepts'", "20 of 20 spans"):
        step(ConceptBuildFinish, special_tokens="text").run()
    assert not (tmp_path / "ds" / "manifest.json").exists()
