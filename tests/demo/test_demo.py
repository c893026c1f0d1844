"""The proof of the demo, and what it removes."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from conceptloader.order.progress.runlog import RunStart
from conceptloader.trace import Launch, Line


@pytest.fixture
def demo(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(checkout / "examples/demo"))
    return checkout / "examples/demo"


STEPS, BATCH = 4, 2


def launches(proof: ModuleType) -> list[Launch]:
    """Steps 0 to 2, then steps 2 and 3 again."""
    sizes: dict[str, Any] = {"batch": [[0, BATCH]], "micro_batch_size": 2, "dp_size": 1, "scheme": "strided"}
    start = RunStart(step=0, consumed=0, seq_len=8, spec="", **sizes)
    made = []
    for number, steps, stop in ((1, (0, 1, 2), 2), (2, (2, 3), None)):
        lines = [
            Line(
                step=step,
                micro_batch=0,
                dp_rank=0,
                samples=[2 * step, 2 * step + 1],
                datasets=[0, 0],
                checksums=[f"{2 * step}", f"{2 * step + 1}"],
                more={"windows": [2 * step, 2 * step + 1], "loss": float(step)},
            )
            for step in steps
        ]
        made.append(Launch(number=number, start=start, lines=lines, stop_step=stop))
    return made


def reference(proof: ModuleType) -> object:
    samples = range(STEPS * BATCH)
    tokens = np.array([[4, 0]] * len(samples))
    return proof.Reference(["a"] * len(samples), list(samples), [str(k) for k in samples], tokens, 8)


@pytest.mark.parametrize("change", ["nothing", "tokens", "window", "a step twice", "a sample missing", "another step"])
def test_the_proof_fails_when_it_should(demo: Path, change: str) -> None:
    proof = importlib.import_module("proof")
    made = launches(proof)
    line = made[1].lines[1]
    changed = {
        "nothing": [line],
        "tokens": [Line(**{**vars(line), "checksums": ["6", "x"]})],
        "window": [Line(**{**vars(line), "more": {"windows": [6, 6]}})],
        "a step twice": [line, line],
        "a sample missing": [],
        "another step": [Line(**{**vars(line), "step": 4})],
    }[change]
    made[1] = Launch(**{**vars(made[1]), "lines": [made[1].lines[0], *changed]})
    if change == "nothing":
        assert proof.check_record(made, reference(proof), ["a"], STEPS, BATCH) == 2
        assert proof.mean_loss(made, "loss", 1, 3) == 1.5
    else:
        with pytest.raises(SystemExit, match="the proof fails"):
            proof.check_record(made, reference(proof), ["a"], STEPS, BATCH)


def test_the_demo_removes_only_what_a_demo_wrote(demo: Path, tmp_path: Path) -> None:
    run = importlib.import_module("run")
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="files that no demo wrote"):
        run.empty(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
    for _ in range(2):
        run.empty(tmp_path / "out")
        (tmp_path / "out" / "demo.png").touch()
        assert (tmp_path / "out" / "demo.png").exists()
    run.empty(tmp_path / "out")
    assert not (tmp_path / "out" / "demo.png").exists()
