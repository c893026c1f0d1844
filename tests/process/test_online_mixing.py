"""The example of weights by loss: killed and resumed, it trains what an unbroken run trains, and the log knows it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from conceptloader.order.progress.runlog import FILE_NAME
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import open_run

STEPS = 40
MIXING = {"mixing": {"odm": {"every": 4}}}


def start(checkout: Path, folder: Path) -> "subprocess.Popen[bytes]":
    script = str(checkout / "examples/pytorch/online_mixing.py")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [sys.executable, *torchrun, script, str(STEPS)],
        cwd=folder, env=environment, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def tell(processes: "list[psutil.Process]", what: Callable[[psutil.Process], None]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):  # as of a process that has ended meanwhile
            what(one)


def trained(folder: Path) -> dict[int, dict[int, int]]:
    """step -> sample -> dataset, of all ranks; a step that was done again counts as it was done last."""
    found: dict[int, dict[int, int]] = {}
    for rank in range(2):
        last: dict[int, Any] = {}
        for line in (folder / f"trained.{rank}.jsonl").read_text().splitlines():
            step, samples, datasets = json.loads(line)
            last[step] = dict(zip(samples, datasets, strict=True))
        for step, samples in last.items():
            found.setdefault(step, {}).update(samples)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_online_mixing_killed_and_resumed(checkout: Path, tmp_path: Path) -> None:
    datasets = {
        name: {
            "path": write_dataset(tmp_path / name, random_documents(150, seed=k, prefix=name, vocab_size=size)),
            "weight": 1,
        }
        for k, (name, size) in enumerate({"easy": 3, "hard": 1000, "middle": 50}.items())
    }
    content = yaml.safe_dump({"seq_len": 32, "datasets": datasets, "loader": {"prefetch_batches": 2}, **MIXING})
    folders = {name: tmp_path / name for name in ("whole", "killed")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "run.yaml").write_text(content)
    process = start(checkout, folders["killed"])
    log = folders["killed"] / "trained.1.jsonl"
    while True:  # until it stands behind a checkpoint, and behind weights that were set after it
        assert process.poll() is None, process.stderr and process.stderr.read()[-3000:]
        launcher = psutil.Process(process.pid)
        everyone = [launcher, *launcher.children(recursive=True)]  # ranks have sessions of their own
        tell(everyone, psutil.Process.suspend)
        steps = log.read_text().count("\n") if log.exists() else 0
        if steps > 12 and steps % 12 in (5, 9, 10, 11):
            break
        tell(everyone, psutil.Process.resume)
        time.sleep(0.02)
    tell(everyone, psutil.Process.kill)
    psutil.wait_procs(everyone)
    process.communicate()
    assert (folders["killed"] / "checkpoint.pt").exists()
    for folder in folders.values():
        process = start(checkout, folder)
        _, errors = process.communicate()
        assert process.returncode == 0, errors[-3000:]
    expected = trained(folders["whole"])
    assert list(expected) == list(range(STEPS))
    assert trained(folders["killed"]) == expected
    lines = {name: (folder / FILE_NAME).read_text().count('"kind":"weights"') for name, folder in folders.items()}
    assert lines["killed"] > lines["whole"], "it was not killed behind weights that were set after a checkpoint"
    for folder in folders.values():
        run = open_run(folder / "run.yaml", folder)
        assert len(run.phases) == 1 + STEPS // 4
        for step, samples in expected.items():
            assert sorted(samples) == list(range(*run.steps.range_of(step)))
            assert run.blend.order.sample_many(sorted(samples))[0].tolist() == [samples[s] for s in sorted(samples)]
    early = [dataset for step in range(6) for dataset in expected[step].values()]
    late = [dataset for step in range(STEPS - 6, STEPS) for dataset in expected[step].values()]
    assert late.count(1) / len(late) > early.count(1) / len(early), "the hard dataset is not drawn more often"
