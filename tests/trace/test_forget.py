"""Runs without some documents: which samples saw them, and what is left out when such a run starts again."""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import (
    documents_with,
    find_checkpoints,
    find_sightings,
    open_run,
)
from tests.oracle.corpora import write_all
from tests.oracle.test_oracle import configurations
from tests.raises import raises
from tests.scale import SOAK, scaled
from tests.trace.walk import Walk, excluding_at_once, histories

BATCH, SAVE, STEPS, IDS = 8, 5, 40, ["web-3", "books-7"]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return lru_cache(None)(lambda seed: write_all(tmp_path_factory.mktemp(f"seed-{seed}-"), seed))


@pytest.mark.timeout(7200 if SOAK else 600)
@settings(
    max_examples=scaled(30, 5_000),
    derandomize=not SOAK,
    database=None,
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_sightings_are_those_of_a_walk(data: st.DataObject, corpora: Callable[[int], Path]) -> None:
    logging.getLogger("conceptloader").setLevel(logging.ERROR)
    folder = corpora(data.draw(st.integers(0, scaled(3, 300)), "corpora"))
    config = data.draw(configurations(folder).flatmap(excluding_at_once), "config")
    walk = Walk(folder, config, data.draw(histories(config["seq_len"]), "starts"))
    known = sorted({one for entry in walk.data.values() for one in entry.ids if one})
    ids = ["no one", *data.draw(st.lists(st.sampled_from(known or ["nobody"]), unique=True, max_size=9), "ids")]
    documents, unknown = documents_with(walk.run, ids)
    assert unknown == [one for one in ids if one not in known]
    wanted = {
        name: {k for k, (one, (a, b)) in enumerate(zip(entry.ids, entry.documents, strict=True)) if one in ids}
        for name, entry in walk.data.items()
    }
    assert {name: set(numbers.tolist()) for name, numbers in documents.items()} == wanted
    names = [member.view.name for member in walk.run.members if member is not None]
    expected = {
        (t, walk.name(t), one.document)
        for t in range(walk.count)
        for one in walk.held[t]
        if one.document in wanted[walk.name(t)]
    }
    found = find_sightings(walk.run, documents, walk.count)
    rows = [(t, names[k], d) for t, k, d in zip(*(column.tolist() for column in found), strict=True)]
    assert sorted(rows) == rows or [r[0] for r in rows] == sorted(r[0] for r in rows)
    assert set(rows) == expected
    assert len(rows) == len(expected)


class Training:
    """A folder with run.yaml, and what a training leaves in it: its weights after each step, checkpoints, run log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.weights, self.seen = folder, dict[int, Any](), dict[int, Any]()

    def train(
        self, config: str, runs: str, until: int, start: Path | None = None, save: str | None = "{:05d}.pt"
    ) -> None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(1000, 8), torch.nn.Linear(8, 1000))
        optimizer = torch.optim.AdamW(model.parameters())
        (self.folder / runs).mkdir(exist_ok=True)
        with cl.make_dataloader(self.folder / config, micro_batch_size=BATCH, num_samples=until * BATCH) as loader:
            if start is not None:
                saved = torch.load(start)
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                loader.load_state_dict(saved["loader"])
            loader.log_start(self.folder / runs, loader.steps)
            for batch in loader:
                losses = cross_entropy(model(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none")
                (losses * batch["loss_mask"]).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                self.weights[loader.steps] = [one.detach().clone() for one in model.parameters()]
                self.seen[loader.steps - 1] = (batch["input_ids"].clone(), batch["loss_mask"].clone())
                if loader.steps % SAVE == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    path = self.folder / runs / save.format(loader.steps)
                    path.parent.mkdir(exist_ok=True)
                    torch.save({**state, "loader": loader.state_dict()}, path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A run of STEPS steps, which was started three times: the second ended within step 23, and began again at 20."""
    folder = tmp_path_factory.mktemp("forget")
    content: dict[str, Any] = {"seq_len": 32, "tracks": {"concepts": {}}, "datasets": {}}
    for k, name in enumerate(("web", "books")):
        path = write_dataset(folder / name, random_documents(300, seed=k, prefix=name, mean_length=40), shards=2)
        content["datasets"][name] = {"path": os.path.basename(path), "weight": 1}
    (folder / "run.yaml").write_text("# ours\n" + yaml.safe_dump(content))
    (folder / "ids.txt").write_text("\n".join(IDS))
    run = Training(folder)
    run.train("run.yaml", "runs", 20)
    run.train("run.yaml", "runs", 23, folder / "runs/00020.pt")
    run.train("run.yaml", "runs", STEPS, folder / "runs/00020.pt")
    return run


def ask(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*map(str, args), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_run_starts_again_before_the_documents(
    trained: Training, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = trained.folder
    config, runs, ids, new = (folder / name for name in ("run.yaml", "runs", "ids.txt", "without.yaml"))
    where = (config, "--run-log", runs, "--ids", ids, "--checkpoints", runs)
    found = ask(capsys, "forget", *where, "--out", new)
    run = open_run(config, runs)
    wanted: dict[int, int] = {}
    for step in range(STEPS):
        for one in cl.trace.trace_step(run, step):
            if {part.id for part in one.documents} & set(IDS):
                wanted[step] = wanted.get(step, 0) + 1
    assert {one["step"]: one["samples"] for one in found["steps"]} == wanted
    assert found["samples"] == sum(wanted.values())
    first = min(wanted)
    start = first // SAVE * SAVE
    assert start >= SAVE, "the test is to have a checkpoint before the first step"
    assert found["checkpoint"] == {
        "path": str(runs / f"{start:05d}.pt"),
        "consumed_samples": start * BATCH,
        "step": start,
    }
    assert found["replayed"] == pytest.approx(1 - start / STEPS)
    assert new.read_text().startswith("# ours\n")

    again = Training(folder)
    (folder / "again").mkdir()
    shutil.copy2(runs / "conceptloader_runs.jsonl", folder / "again")
    again.train("without.yaml", "again", STEPS, runs / f"{start:05d}.pt")
    changed = [step for step in again.seen if not all(map(torch.equal, again.seen[step], trained.seen[step]))]
    assert changed == sorted(wanted)
    for step, weights in again.weights.items():
        assert all(map(torch.equal, weights, trained.weights[step])) == (step <= first)
    asked = (new, "--run-log", folder / "again", "--ids", ids)
    assert ask(capsys, "forget", *asked, "--until", STEPS, "--check")["steps"] == []
    assert ask(capsys, "forget", *where[:5], "--until", STEPS, "--check", code=1)["steps"] == found["steps"]


def test_documents_that_no_step_had(trained: Training, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run, runs = open_run(trained.folder / "run.yaml", trained.folder / "runs"), trained.folder / "runs"
    numbers = {name: np.arange(300) for name in ("web", "books")}
    seen = find_sightings(run, numbers, STEPS * BATCH)
    unseen = sorted(set(range(300)) - set(seen.document[seen.dataset == list(run.datasets).index("web")].tolist()))
    (tmp_path / "ids").write_text(f"web-{unseen[0]}\nnobody")
    new = trained.folder / "unseen.yaml"
    where = (trained.folder / "run.yaml", "--run-log", runs, "--ids", tmp_path / "ids", "--checkpoints", runs)
    found = ask(capsys, "forget", *where, "--allow-unknown", "--out", new)
    assert (found["unknown"], found["steps"], found["replayed"]) == (["nobody"], [], 0)
    assert yaml.safe_load(new.read_text())["exclude"][0]["at"] == STEPS * BATCH  # to stay unseen


def test_without_an_earlier_checkpoint_the_run_starts_over(
    trained: Training, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "late").mkdir()
    shutil.copy2(trained.folder / "runs/00040.pt", tmp_path / "late/step-40.pt")
    new = trained.folder / "over.yaml"
    where = (trained.folder / "run.yaml", "--run-log", trained.folder / "runs", "--ids", trained.folder / "ids.txt")
    found = ask(capsys, "forget", *where, "--checkpoints", tmp_path / "late", "--out", new)
    assert (found["checkpoint"], found["replayed"]) == (None, 1)
    assert yaml.safe_load(new.read_text())["exclude"][0]["at"] == 0


@pytest.fixture
def folder(trained: Training, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(trained.folder, tmp_path / "copy", copy_function=shutil.copy2)
    for name in ("without.yaml", "unseen.yaml", "over.yaml"):
        (tmp_path / "copy" / name).unlink(missing_ok=True)
    return tmp_path / "copy"


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *more: str, code: int = 2, ids: str = "ids.txt") -> str:
    """The message, after which there is no new configuration."""
    words = ["--run-log", folder / "runs", "--checkpoints", folder / "runs", "--out", folder / "new.yaml"]
    capsys.readouterr()
    assert main(["forget", str(folder / "run.yaml"), "--ids", str(folder / ids), *map(str, words), *more]) == code
    assert not (folder / "new.yaml").exists()
    return capsys.readouterr().err


def test_what_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (folder / "some.txt").write_text("web-3\nnobody\nno one")
    assert "2 of 3 ids that no dataset has, such as 'nobody', 'no one'" in refused(folder, capsys, ids="some.txt")
    (folder / "none.txt").write_text("nobody")
    assert "1 of 1 ids" in refused(folder, capsys, "--allow-unknown", ids="none.txt")
    assert "No such file" in refused(folder, capsys, "--checkpoints", str(tmp_path / "gone"))
    (tmp_path / "empty").mkdir()
    assert "among its 0 entries" in refused(folder, capsys, "--checkpoints", str(tmp_path / "empty"), code=1)
    assert "relative paths" in refused(folder, capsys, "--out", str(tmp_path / "new.yaml"))
    assert not (tmp_path / "new.yaml").exists()
    (folder / "taken.yaml").write_text("")
    assert "which exists" in refused(folder, capsys, "--out", str(folder / "taken.yaml"))
    assert main(["forget", str(folder / "run.yaml"), "--ids", str(folder / "ids.txt"), "--out", "new.yaml"]) == 2
    assert "--out without --checkpoints" in capsys.readouterr().err


def test_a_dataset_that_was_rebuilt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(folder / "web")
    write_dataset(folder / "web", random_documents(300, seed=9, prefix="web", mean_length=40), shards=2)
    assert "datasets.web.stream_fingerprint" in refused(folder, capsys, code=1)
    shutil.rmtree(folder / "runs/conceptloader_runs.jsonl", ignore_errors=True)
    (folder / "runs/conceptloader_runs.jsonl").unlink()
    assert (
        main(
            [
                "forget",
                str(folder / "run.yaml"),
                "--ids",
                str(folder / "ids.txt"),
                "--checkpoints",
                str(folder / "runs"),
            ]
        )
        == 1
    )
    assert "datasets.web.stream_fingerprint" in capsys.readouterr().err


def test_a_run_log_that_was_edited(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = folder / "runs/conceptloader_runs.jsonl"
    lines = log.read_text().splitlines()
    starts = [json.loads(line) for line in lines if '"kind":"start"' in line]
    edited = {**starts[-1], "consumed": starts[-1]["consumed"] + BATCH}
    log.write_text("\n".join([*lines[:-1], json.dumps(edited), ""]))
    assert "found a start at sample 168, expected sample 160" in refused(folder, capsys, code=1)
    first = next(k for k, line in enumerate(lines) if '"kind":"start"' in line)
    whole = [{**one, "batch": [[0, 2 * BATCH]], "consumed": 2 * one["consumed"], "end": None} for one in starts]
    log.write_text("\n".join([*lines[:first], *map(json.dumps, whole), ""]))
    assert "as the run log says" in refused(folder, capsys, code=1)


def test_two_runs_in_one_folder(folder: Path, capsys: pytest.CaptureFixture[str], trained: Training) -> None:
    """Of another order; of the same, but before the run began again; and of a branch that it has left."""
    config, runs = folder / "run.yaml", folder / "runs"
    (folder / "other.yaml").write_text(config.read_text() + "seed: 3\n")
    other = Training(folder)
    other.train("other.yaml", "others", 10, save="step-{}.pt")
    shutil.copy2(folder / "others/step-10.pt", runs / "step-10.pt")
    found, skipped = find_checkpoints(open_run(config, runs), runs)
    assert [one.step for one in found] == list(range(SAVE, STEPS + 1, SAVE))
    assert [*skipped] == [str(runs / "step-10.pt")]
    assert "seed: saved 3, now 1234" in skipped[str(runs / "step-10.pt")]

    old = time.time() - 3600
    os.utime(runs / "00030.pt", (old, old))
    os.utime(runs / "00020.pt", (old, old))  # that is older than its launch of step 0, too
    found, skipped = find_checkpoints(open_run(config, runs), runs)
    assert [one.step for one in found] == [5, 10, 15, 25, 35, 40]
    assert "a checkpoint older than the launch of step 20" in skipped[str(runs / "00030.pt")]
    with raises(ResumeError, found="entries"):
        find_checkpoints(open_run(folder / "other.yaml"), runs / "..", logged=False)


def test_entries_that_are_no_checkpoint(folder: Path) -> None:
    config, runs = folder / "run.yaml", folder / "runs"
    (runs / "latest.txt").write_text("40")
    (runs / "empty").mkdir()
    damaged = bytearray((runs / "00010.pt").read_bytes())
    at = damaged.index(b'consumed_samples":') + 18
    damaged[at : at + 1] = b"7"
    (runs / "00010.pt").write_bytes(damaged)
    within = Training(folder)
    with cl.make_dataloader(config, micro_batch_size=BATCH // 2, global_batch_size=BATCH) as loader:
        next(iter(loader))
        torch.save({"loader": loader.state_dict()}, runs / "within.pt")
    found, skipped = find_checkpoints(open_run(config, runs), runs)
    assert within.weights == {}
    assert len(found) == STEPS // SAVE - 1
    assert sorted(skipped) == [str(runs / "00010.pt"), str(runs / "within.pt")]
    with raises(ConfigError, "checkpoints"):
        find_checkpoints(open_run(config, runs), runs / "gone")


def test_weights_that_were_set_live(trained: Training, tmp_path: Path) -> None:
    """They hold for the other configuration, too; a checkpoint with those of a branch that was left is none."""
    datasets = {name: {"path": str(trained.folder / name), "weight": 1} for name in ("web", "books")}
    (tmp_path / "runs").mkdir()
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"seq_len": 32, "datasets": datasets}))

    def train(start: str | None, until: int, weight: int) -> None:
        with cl.make_dataloader(tmp_path / "run.yaml", micro_batch_size=BATCH, num_samples=until * BATCH) as loader:
            if start is not None:
                loader.load_state_dict(torch.load(tmp_path / "runs" / start))
            loader.log_start(tmp_path / "runs", loader.steps)
            for _ in loader:
                if loader.steps % 4 == 2:
                    loader.set_weights({"web": weight + loader.steps, "books": 1})
                if loader.steps % 5 == 0:
                    torch.save(loader.state_dict(), tmp_path / "runs" / f"{loader.steps}.pt")

    train(None, 20, 2)
    shutil.copy2(tmp_path / "runs/20.pt", tmp_path / "left.pt")
    train("10.pt", 35, 90)
    run = open_run(tmp_path / "run.yaml", tmp_path / "runs")
    assert run.blend.spec.origin is not None
    found, skipped = find_checkpoints(run, tmp_path / "runs")
    assert ([one.step for one in found], skipped) == ([5, 10, 15, 20, 25, 30, 35], {})
    shutil.copyfile(tmp_path / "left.pt", tmp_path / "runs/20.pt")  # as new as the others
    _, skipped = find_checkpoints(run, tmp_path / "runs")
    assert "weights set live" in skipped[str(tmp_path / "runs/20.pt")]

    steps = [
        step for step in range(5, 35) for part in [cl.trace.trace_step(run, step)]
        if any({one.id for one in sample.documents} & set(IDS) for sample in part)
    ]  # fmt: skip
    assert steps
    documents, _ = documents_with(run, IDS)
    seen = find_sightings(run, documents, 35 * BATCH).sample // BATCH
    assert sorted({step for step in seen.tolist() if step >= 5}) == steps
