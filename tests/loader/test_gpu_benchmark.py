"""The benchmark of a training on a device, at toy size on the processor."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_trains_with_and_without_the_loader(tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}", "BENCH_DATA": str(tmp_path)}
    command = [sys.executable, ROOT / "benchmarks" / "gpu.py", "--toy", "--device", "cpu"]
    found = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120).stdout)
    assert found["device"] == "cpu"
    assert found["tokens_a_step"] == 128
    assert 0 < found["loss"] < 11
    for name in ("synthetic", "loader"):
        assert 0 <= found[name]["waited"] <= found[name]["step"]
    least, most = sorted(found["overhead_percent_of_rounds"])
    assert least <= found["overhead_percent"] <= most
