"""examples/receipt: a run that answers for its data, as its page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_example(tmp_path: Path, checkout: Path) -> None:
    command = [sys.executable, str(checkout / "examples/receipt/run.py"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "difference: None" in done.stdout
    found = re.search(r"(\d+) receipts of (\d+) to (\d+) bytes, (\d+) sightings", done.stdout)
    assert found is not None
    receipts, _, largest, sightings = map(int, found.groups())
    assert receipts == 40
    assert largest < 2000
    assert sightings > 100
