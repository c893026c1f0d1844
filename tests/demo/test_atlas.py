"""examples/atlas: killed and resumed it ends as it would have, and knows concepts of documents that it never saw."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest

from tests.dying import die_with_parent
from tests.scale import SOAK

STEPS, MODULES = 200, 160


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not SOAK, reason="takes a minute or two: make soak runs it")
def test_it_learns_concepts_through_a_kill(checkout: Path, tmp_path: Path) -> None:
    folder, environment = tmp_path / "atlas", {**os.environ, "PYTHONPATH": str(checkout)}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], env={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
            cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    shown = run("examples/atlas/run.py", str(folder), "--steps", str(STEPS), "--modules", str(MODULES))
    assert "killed; started again" in shown
    assert "'of status too_long':" in shown
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "examples/atlas/train.py")
    run(*launcher, str(folder), "--steps", str(STEPS), "--into", "whole")
    found, whole = (json.loads((folder / name / "metrics.json").read_text()) for name in ("run", "whole"))
    assert found == whole
    concepts = found["concepts"].values()
    assert len(concepts) > 10
    base = mean(one["base_rate"] for one in concepts)
    assert mean(one["average_precision"] for one in concepts) > 1.3 * base
    assert sum(one["average_precision"] > one["base_rate"] for one in concepts) > 0.8 * len(concepts)
    assert found["language_loss"] < 6.2  # ln 2000 is 7.6
