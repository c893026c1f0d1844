"""examples/distill: a student learns more of the same data with its teacher's values than without."""

import json
import os
import subprocess
import sys

import pytest

from tests.dying import die_with_parent
from tests.scale import SOAK

DOCUMENTS, STEPS = (12, 300) if SOAK else (3, 20)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_student_learns_more_with_its_teacher(checkout, tmp_path):
    command = [sys.executable, "examples/distill/run.py", str(tmp_path / "out"), str(DOCUMENTS), str(STEPS)]
    done = subprocess.run(
        command, env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(checkout)}, cwd=checkout,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, preexec_fn=die_with_parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"teacher_ids: u2 [8], {DOCUMENTS} tokens begin documents" in done.stdout
    alone, distilled, _ = json.loads((tmp_path / "out/losses.json").read_text()).values()
    if SOAK:
        assert distilled < alone - 0.1
