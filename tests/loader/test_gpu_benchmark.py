"""The benchmark of a training on a device, at toy size on the processor; how it reads a profile, by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    return gpu


def test_it_trains_with_and_without_the_loader(tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}", "BENCH_DATA": str(tmp_path)}
    command = [sys.executable, ROOT / "benchmarks" / "gpu.py", "--toy", "--device", "cpu"]
    found = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120).stdout)
    assert found["device"] == "cpu"
    assert found["tokens_a_step"] == 128
    assert 0 < found["loss"] < 11
    for name in ("synthetic", "loader"):
        assert 0 <= found[name]["waited"] <= found[name]["step"]
    assert len(found["overhead_percent_of_rounds"]) == 2
    assert (
        min(found["overhead_percent_of_rounds"])
        <= found["overhead_percent"]
        <= max(found["overhead_percent_of_rounds"])
    )


def test_copies_count_as_overlapped_as_long_as_a_kernel_runs(gpu):
    def event(kind, name, start, length):
        return {"cat": kind, "name": name, "ts": start, "dur": length}

    events = [
        event("kernel", "a", 0, 100),
        event("kernel", "b", 50, 100),  # on another stream: busy until 150
        event("kernel", "c", 200, 50),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 140, 40),  # 10 of it
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 190, 40),  # 30 of it
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 0, 1000),
        event("cpu_op", "aten::add", 0, 1000),
        {"name": "process_name", "ph": "M"},
    ]
    milliseconds, share = gpu.overlapped(events)
    assert milliseconds == pytest.approx(0.08)
    assert share == pytest.approx(0.5)
    assert gpu.overlapped([]) == (0.0, 0.0)
