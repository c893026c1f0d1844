"""The proof of the demo, and what it removes."""

import importlib
import math

import pytest
import yaml


@pytest.fixture
def demo(checkout, monkeypatch):
    monkeypatch.syspath_prepend(str(checkout / "examples/demo"))
    return checkout / "examples/demo"


BATCH = 2
PLANNED = [("a", k, str(k)) for k in range(8)]


def launches(proof):
    """Steps 0 to 2, then steps 2 and 3 again."""
    made = []
    for steps, stop in (((0, 1, 2), 2), ((2, 3), math.inf)):
        lines = []
        for step in steps:
            samples = [2 * step, 2 * step + 1]
            lists = {"samples": samples, "datasets": [0, 0], "windows": samples, "checksums": [str(k) for k in samples]}
            lines.append({"step": step, **lists, "loss": float(step)})
        made.append(proof.Launch(1, steps[0], stop, lines))
    return made


# What becomes of the last line: the lines in its place, with what they have otherwise.
CHANGES = yaml.safe_load("""
nothing: [{}]
tokens: [{checksums: ["6", x]}]
window: [{windows: [6, 6]}]
a step twice: [{}, {}]
a sample missing: []
another step: [{step: 4}]
""")


@pytest.mark.parametrize("change", CHANGES)
def test_the_proof_fails_when_it_should(demo, change):
    proof = importlib.import_module("proof")
    made = launches(proof)
    line = made[1].lines.pop()
    made[1].lines.extend({**line, **more} for more in CHANGES[change])
    if change == "nothing":
        assert proof.check_record(made, PLANNED, ["a"], BATCH) == 2
        assert proof.mean_loss(made, "loss", 1, 3) == 1.5
    else:
        with pytest.raises(SystemExit, match="the proof fails"):
            proof.check_record(made, PLANNED, ["a"], BATCH)


def test_the_demo_removes_only_what_a_demo_wrote(demo, tmp_path):
    run = importlib.import_module("run")
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="files that no demo wrote"):
        run.empty(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
    for _ in range(2):
        run.empty(tmp_path / "out")
        (tmp_path / "out" / "modules.jsonl").touch()
        assert (tmp_path / "out" / "modules.jsonl").exists()
    run.empty(tmp_path / "out")
    assert not (tmp_path / "out" / "modules.jsonl").exists()
