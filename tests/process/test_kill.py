"""Real processes, real SIGKILL: what the ranks recorded is the plan, on whatever number of ranks the run went on."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
import yaml

from conceptloader.adapters import RunLog
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import audit, locate_document, open_run, read_record

HERE = Path(__file__).parent
STEPS, GLOBAL_BATCH = 30, 12


@dataclass(frozen=True)
class Start:
    """A start of the run on `ranks`; SIGKILL comes once rank 0 has recorded step `kill_after`: to all of its processes,
    as when the power fails, or to the last rank only, whose launcher then ends the others."""

    ranks: int
    micro_batch: int
    kill_after: int | None = None
    victims: Literal["all", "last rank"] = "all"


CHAIN = [Start(2, 6, 4), Start(3, 2, 13, "last rank"), Start(1, 4)]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    datasets = {
        name: {"path": write_dataset(tmp_path / name, random_documents(60, seed=k, prefix=name))}
        for k, name in enumerate(["books", "web"])
    }
    content: dict[str, Any] = {
        "seq_len": 32,
        "datasets": datasets,
        "phases": [{"start": 0, "weights": {"books": 1}}, {"start": 100, "weights": {"books": 1, "web": 2}}],
        "tracks": {"concepts": {}},
        "loader": {"prefetch_batches": 3},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "run.yaml"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_and_resumed_trains_the_plan(config: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    output.mkdir()
    for number, start in enumerate(CHAIN, 1):
        launch(config, output, start, number)
    launches = read_record(output / "record")
    assert [one.start.dp_size for one in launches] == [start.ranks for start in CHAIN]

    trained: Counter[tuple[int, int]] = Counter()
    for one in launches:
        for line in one.lines:
            if one.counts(line):
                trained.update((line.step, sample) for sample in line.samples)
    planned = {(step, step * GLOBAL_BATCH + k): 1 for step in range(STEPS) for k in range(GLOBAL_BATCH)}
    assert trained == planned

    run = open_run(config, output)
    report = audit(run, launches)
    assert report.difference is None, str(report.difference)
    assert report.incomplete == []
    assert report.repeated > 0, "no kill came after a checkpoint; the test has tested little"
    check_places(output, launches)
    seen = locate_document(run, "web-7", STEPS * GLOBAL_BATCH)
    assert all(one.sample >= 100 for one in seen), "web is drawn from sample 100 on"


def check_places(output: Path, launches: list[Any]) -> None:
    """The run log tells for every sample at which step and on which rank it was trained."""
    history = RunLog(output).history
    for one in launches:
        for line in filter(one.counts, one.lines):
            for slot, sample in enumerate(line.samples):
                assert history.places(sample) == [(line.step, line.micro_batch, line.dp_rank, slot)]


def launch(config: Path, output: Path, start: Start, number: int) -> None:
    """torchrun train.py, to its end or until it is killed."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(start.ranks),
        str(HERE / "train.py"), str(config), str(output), "--steps", str(STEPS),
        "--global-batch-size", str(GLOBAL_BATCH), "--micro-batch-size", str(start.micro_batch),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with open(output / f"log-{number}.txt", "w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                if start.kill_after is not None and reached(output, number, start.kill_after):
                    kill(process.pid, start.victims)
                    process.wait(timeout=60)
                time.sleep(0.005)
        finally:
            kill(process.pid, "all")
        log.seek(0)
        assert (process.returncode == 0) == (start.kill_after is None), log.read()[-3000:]


def reached(output: Path, number: int, step: int) -> bool:
    path = output / "record" / f"{number:06d}.000000.jsonl"
    return path.exists() and f'"step":{step},' in path.read_text()


def kill(launcher: int, victims: str) -> None:
    with suppress(psutil.NoSuchProcess):
        everyone = list(family(launcher))
        chosen = everyone if victims == "all" else everyone[-1:]
        for one in chosen:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        psutil.wait_procs([one for one in chosen if one.pid != launcher], timeout=10)


def family(launcher: int) -> Iterator[psutil.Process]:
    """The launcher, then its ranks in the order in which they were started."""
    process = psutil.Process(launcher)
    yield process
    yield from sorted(process.children(recursive=True), key=lambda one: one.create_time())
