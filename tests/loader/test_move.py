"""A run that another trainer began: its state is found in any checkpoint, and the run goes on here."""

import json
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
import yaml

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.loader.torch.trained import EvaluationLoader
from tests.loader.test_state import KEY, after, make
from tests.raises import raises


@pytest.fixture
def saved(config, tmp_path):
    """A checkpoint at 16 samples, among other files."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    torch.save({"weights": torch.zeros(1000), "data": after(config, 2)}, folder / "all.pt")
    (folder / "notes.txt").write_text('{"checksum":"no state')
    return folder


WRITE = {
    "torch": lambda folder, state: torch.save({"model": torch.zeros(5), "loader": state}, folder / "x.ckpt"),
    "pickle": lambda folder, state: (folder / "x.pkl").write_bytes(pickle.dumps({"loader": state})),
    "json": lambda folder, state: (folder / "x.json").write_text(json.dumps({"at": {"loader": state}}, indent=2)),
    "dcp": lambda folder, state: dcp.save({"model": torch.zeros(5), "loader": dict(state)}, checkpoint_id=folder),
}


@pytest.mark.parametrize("write", WRITE.values(), ids=WRITE)
def test_the_state_is_found_in_files_of_every_kind(config, tmp_path, write):
    state = after(config, 2)
    for _ in range(2):  # as another rank saves it
        write(tmp_path, state)
    assert cl.find_state(tmp_path) == state
    (file, *_) = (one for one in tmp_path.rglob("*") if one.is_file() and b"checksum" in one.read_bytes())
    assert cl.find_state(file) == state


def test_what_is_no_single_state_is_refused(config, saved):
    with raises(ResumeError, saved.parent / "nothing", "no such directory"):
        cl.find_state(saved.parent / "nothing")
    with raises(ResumeError, saved / "notes.txt", "no file with a state"):
        cl.find_state(saved / "notes.txt")
    (saved / "other.json").write_text(json.dumps(after(config, 3)))
    with raises(ResumeError, saved, "24 samples", fix="file of one"):
        cl.find_state(saved)
    assert cl.find_state(saved / "other.json") == after(config, 3)
    state = after(config, 2)[KEY]
    (saved / "other.json").write_text(json.dumps({KEY: state.replace('"consumed_samples":16', '"consumed_samples":8')}))
    with raises(ResumeError, saved / "other.json", "edited"):
        cl.find_state(saved)


def test_a_run_is_not_continued_where_that_has_no_meaning(config, saved):
    moved = {**config, "continue_from": str(saved)}
    with raises(ConfigError, "consumed_samples", "continue_from"):
        make(moved, consumed_samples=8)
    with raises(ConfigError, "continue_from", "evaluation"):
        EvaluationLoader(moved, micro_batch_size=4, num_samples=24)
    with raises(ResumeError, found="seed: saved 5, now 6"):
        make({**moved, "seed": 6})
    within = saved / "within.json"
    within.write_text(json.dumps(after(config, 1, global_batch_size=16)))
    with raises(ResumeError, found="8 samples, within the step that began at 0", fix="between two steps"):
        make({**moved, "continue_from": str(within)})


def test_trace_says_what_a_checkpoint_holds(config, saved, tmp_path, capsys):
    def trace(*words):
        status, printed = main(["trace", *words, "--checkpoint", str(saved)]), capsys.readouterr()
        return status, printed.out + printed.err

    path, hash_ = tmp_path / "run.yaml", make(config).blend.spec.hash
    path.write_text(yaml.safe_dump(config))
    status, printed = trace(str(path))
    assert status == 0
    for part in (f"{saved / 'all.pt'}: state of an order with the hash {hash_}", "samples consumed: 16", "seed 5"):
        assert part in printed
    assert f"{path}: resumes at sample 16; those ahead are as planned" in printed
    found = json.loads(trace("--json")[1])
    assert (found["consumed_samples"], found["step"], found["spec_hash"]) == (16, 2, hash_)
    path.write_text(yaml.safe_dump({**config, "seed": 6}))
    status, printed = trace(str(path))
    assert status == 1
    assert "seed: saved 5, now 6" in printed
    assert trace("--dp-size", "2")[0] == main(["trace", "--step", "0"]) == 2
