"""The example of runs again without something: its own checks, and what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_forgets(checkout: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, str(checkout / "examples/forget/run.py"), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"forget: steps \[\d.*\] of 80, again from (whole/step-\d+\.pt|step 0): ", done.stdout)
    assert re.search(r"twin: steps \[\d.*\], again from ", done.stdout)
    assert done.stdout.count("loss of ") == 4
    assert (tmp_path / "out/worth.png").stat().st_size > 10_000
