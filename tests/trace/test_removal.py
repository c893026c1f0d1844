"""Runs without some documents: what locate says to do, whether the run that resumes so is without them, and when the
all-clear is refused."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.order.progress.runlog import FILE_NAME
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import locate_documents, open_run, trace_step

BATCH, SAVE, STEPS, IDS = 8, 5, 40, ["web-3", "books-7"]


class Training:
    """A folder with run.yaml, and what a training leaves in it: its weights after each step, checkpoints, run log."""

    def __init__(self, folder):
        self.folder, self.weights, self.seen = folder, {}, {}

    def train(self, config, runs, until, start=None):
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
                    torch.save({**state, "loader": loader.state_dict()}, self.folder / runs / f"{loader.steps:05d}.pt")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of STEPS steps, which was started three times: the second ended within step 23, and began again at 20."""
    folder = tmp_path_factory.mktemp("removal")
    content = {"seq_len": 32, "tracks": {"concepts": {}}, "datasets": {}}
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


def ask(folder, *words, code=0):
    """What the command says, in a process of its own."""
    command = [sys.executable, "-m", "conceptloader", "locate", *map(str, words), "--quiet"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_a_run_resumes_from_before_its_documents(trained):
    folder, runs = trained.folder, trained.folder / "runs"
    run = open_run(log=runs)
    steps = {
        step: sum(bool({part.id for part in one.documents} & {*IDS}) for one in trace_step(run, step))
        for step in range(STEPS)
    }
    wanted = [step for step, samples in steps.items() if samples]
    first = wanted[0]
    start = first // SAVE * SAVE
    assert start >= SAVE, "the test is to have a checkpoint before the first step"

    asked = "--run-log", "runs", "--documents", "ids.txt"
    found = json.loads(ask(folder, *asked, "--samples", STEPS * BATCH, "--json"))
    assert (found["before"], found["samples"]) == (first * BATCH, STEPS * BATCH)
    assert {one["id"] for one in found["seen"]} == {*IDS}
    assert len({one["sample"] for one in found["seen"]}) == sum(steps.values())
    assert sorted({place["step"] for one in found["seen"] for place in one["places"]}) == wanted

    said = ask(folder, *asked, "--check", code=1)
    lines = said.partition("to train without: resume from the last checkpoint of at most ")[2]
    line, _, pasted = lines.partition("\n")
    assert line == f"{first * BATCH} samples ({first} steps), with"
    (folder / "without.yaml").write_text((folder / "run.yaml").read_text() + pasted)

    again = Training(folder)
    (folder / "again").mkdir()
    shutil.copy2(runs / FILE_NAME, folder / "again")
    again.train("without.yaml", "again", STEPS, runs / f"{start:05d}.pt")
    changed = [step for step in again.seen if not all(map(torch.equal, again.seen[step], trained.seen[step]))]
    assert changed == wanted
    for step, weights in again.weights.items():
        assert all(map(torch.equal, weights, trained.weights[step])) == (step <= first)

    clear = f"none of the documents is in the first {STEPS * BATCH} samples\n"
    assert ask(folder, "--run-log", "again", *asked[2:], "--check").endswith(clear)
    assert ask(folder, "without.yaml", *asked[2:], "--samples", STEPS * BATCH, "--check").endswith(clear)
    # Entries that begin after a document was read are not enough.
    late = yaml.safe_load((folder / "without.yaml").read_text())
    late["exclude"][0]["at"] += BATCH
    (folder / "late.yaml").write_text(yaml.safe_dump(late))
    found = json.loads(ask(folder, "late.yaml", *asked[2:], "--samples", 10**4, "--check", "--json", code=1))
    assert {one["sample"] // BATCH for one in found["seen"]} == {first}


@pytest.fixture
def folder(trained, tmp_path):
    """A copy that a test may damage."""
    shutil.copytree(trained.folder, tmp_path / "copy", copy_function=shutil.copy2)
    return tmp_path / "copy"


def check(capsys, *words, code):
    """What --check says on stderr, with an exit code."""
    capsys.readouterr()
    assert main(["locate", *map(str, words), "--check"]) == code
    return capsys.readouterr().err


def test_documents_that_no_step_had(trained, capsys, tmp_path):
    run, runs = open_run(log=trained.folder / "runs"), trained.folder / "runs"
    unseen = next(k for k in range(300) if not list(locate_documents(run, [f"web-{k}"], STEPS * BATCH)))
    (tmp_path / "ids").write_text(f"web-{unseen}\n")
    check(capsys, "--run-log", runs, "--documents", tmp_path / "ids", code=0)
    assert check(capsys, "--run-log", runs, "--document", f"web-{unseen}", code=0) == ""
    later = "--samples", 10**5  # which the last launch plans to read it in
    assert check(capsys, "--run-log", runs, "--document", f"web-{unseen}", *later, code=1) == ""


def test_what_is_excluded_of_one_document(trained, capsys):
    """By number its tokens are, as it may have no id; with a dataset, this one's alone."""
    web = cl.open_dataset(trained.folder / "web")
    number = web.find_document("web-3")[0]
    asked = ["locate", str(trained.folder / "run.yaml"), "--samples", str(STEPS * BATCH), "--dataset", "web", "--json"]
    for words, which in (
        (["--document-number", str(number)], {"tokens": list(web.document_range(number))}),
        (["--document", "web-3"], {"ids": ["web-3"]}),
    ):
        capsys.readouterr()
        assert main([*asked, *words]) == 0
        found = json.loads(capsys.readouterr().out)
        first = found["seen"][0]["sample"]  # without steps, what may be consumed is said in samples
        assert found["exclude"] == [{"at": first, "dataset": "web", **which, "take": "own"}]
        config = yaml.safe_load((trained.folder / "run.yaml").read_text()) | {"exclude": found["exclude"]}
        (trained.folder / "one.yaml").write_text(yaml.safe_dump(config))
        assert not list(locate_documents(open_run(trained.folder / "one.yaml"), ["web-3"], STEPS * BATCH, "web"))


def test_what_is_refused(folder, capsys):
    asked = "--run-log", folder / "runs", "--documents", folder / "some.txt"
    (folder / "some.txt").write_text("web-3\nnobody\nno one")
    assert "2 of 3 ids that no dataset has, such as 'nobody', 'no one'" in check(capsys, *asked, code=2)
    (folder / "some.txt").write_text("\n")
    assert "0 of 0 ids" in check(capsys, *asked, code=2)
    (folder / "some.txt").write_text("web-3\n")
    assert "found 319, expected the length of the run, 320 or more" in check(
        capsys, *asked, "--samples", STEPS * BATCH - 1, code=2
    )
    assert "--samples: found nothing" in check(capsys, folder / "run.yaml", *asked[2:], code=2)
    for words in (["--limit", "3"], ["--dataset", "web"]):
        assert f"--check and {words[0]}" in check(capsys, folder / "run.yaml", *asked, *words, code=2)
    assert "--check and --where" in check(capsys, *asked[:2], "--where", "3 in concepts", code=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:-1], {**lines[-1], "consumed": 168}], "step 20: found a start at sample 168, expected"),
        (lambda lines: [*lines[:-1], {**lines[-1], "step": 25}], "step 25: found a start at sample 160, expected"),
        (lambda lines: [one for one in lines if one.get("step") != 0], "found step 20 at sample 160 first"),
        # Another loader trained the steps before, as a data stage of nanotron's may have.
        (
            lambda lines: [{**one, "step": one["step"] + 9} if "step" in one else one for one in lines],
            "step 9 at sample 0",
        ),
    ],
    ids=["samples passed over", "steps of another loader", "without the first launch", "after another loader"],
)
def test_a_run_log_with_gaps(folder, capsys, change, message):
    """An all-clear is for all steps. What no step had of it is refused as well."""
    log = folder / "runs" / FILE_NAME
    lines = change([json.loads(line) for line in log.read_text().splitlines()])
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for document in ("web-3", "web-299"):
        assert message in check(capsys, "--run-log", folder / "runs", "--document", document, "--samples", 320, code=2)


def test_a_run_that_another_trainer_began(folder, capsys):
    config = yaml.safe_load((folder / "run.yaml").read_text()) | {"continue_from": "runs/00020.pt"}
    (folder / "moved.yaml").write_text(yaml.safe_dump(config))
    Training(folder).train("moved.yaml", "moved", 25)
    said = check(capsys, "--run-log", folder / "moved", "--document", "web-3", "--samples", 320, code=2)
    assert "found step 0 at sample 160 first" in said
