"""The matrix: trainers x ways of stopping and going on, and what the models' forwards have to have seen."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from conceptloader.testing import random_documents, write_dataset
from tests.trainers.zygote import Launch

STEPS, BATCH = 7, 12
SIZES = "SIGKILL and other sizes"
WITHIN = {"micro": 3, "accumulate": 2}
# What stops a run, and how it goes on. A trainer that takes whole steps from the loader ignores `mid` and `ahead`.
PARTS: dict[str, list[dict[str, Any]]] = {
    SIZES: [{"kill_at": 4, "steps": 6}, {"ranks": 1, "micro": 3, "accumulate": 4}, {"ahead": True}],
    "same size, in the middle of accumulation": [{**WITHIN, "mid": True}, {**WITHIN, "ahead": True}],
}


def configs(folder: Path) -> tuple[str, str]:
    """A training and a validation configuration; other.yaml beside them is that of a training with another weight."""
    folder.mkdir(exist_ok=True)
    write_dataset(folder / "data", random_documents(60, seed=1))
    common: dict[str, Any] = {"seq_len": 16, "datasets": {"data": {"path": "data"}}, "outputs": {"sample_index": True}}
    common["tracks"] = {"concepts": {"layout": "padded"}}
    (folder / "run.yaml").write_text(yaml.safe_dump({**common, "loader": {"prefetch_batches": 3}}))
    other = {"data": {"path": "data", "weight": 2.0}}
    (folder / "other.yaml").write_text(yaml.safe_dump({**common, "loader": {"prefetch_batches": 3}, "datasets": other}))
    valid = {"data": {"path": "data", "split": [0.9, 1]}}
    (folder / "valid.yaml").write_text(yaml.safe_dump({**common, "datasets": valid, "order": "sequential"}))
    return str(folder / "run.yaml"), str(folder / "valid.yaml")


def launches(folder: Path, config: str, specs: list[dict[str, Any]]) -> list[Launch]:
    """The launches of a run: each but the last stops behind its checkpoint, and the next goes on from that."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number, spec in enumerate(specs):
        last = number == len(specs) - 1
        steps = STEPS if last else 2 * number + 4
        common = {"ranks": 2, "micro": 6, "accumulate": 1, "steps": steps, "save_at": 2 * number + 3}
        made.append(
            Launch(**{**common, "config": config, "out": str(folder), "number": number, "resume": number > 0, **spec})
        )
    return made


def run(module: str, chains: list[list[Launch]]) -> str:
    """All launches, in one process that has imported the trainer. Gives what they printed."""
    specs = json.dumps([asdict(launch) for one in chains for launch in one])
    command = [sys.executable, str(Path(__file__).parent / "zygote.py"), module, specs]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    return done.stdout + done.stderr


def errors(chain: list[Launch]) -> list[str]:
    """Of ranks that failed, launch by launch."""
    return [path.read_text() for path in sorted(chain[0].path.glob("error.*"))]


def seen(launch: Launch, kind: str = "train") -> dict[int, Counter[int]]:
    """Step -> samples that the ranks' models had."""
    found: dict[int, Counter[int]] = {}
    for path in launch.path.glob(f"record.{launch.number}.*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if line["kind"] == kind:
                found.setdefault(line["step"], Counter()).update(line["samples"])
    return found


def judge(chain: list[Launch], steps: int = STEPS) -> tuple[int, int]:
    """(skipped, repeated) samples of the run as it counts: a step is what the last launch that made it has seen."""
    made: dict[int, Counter[int]] = {}
    for launch in chain:
        trained = seen(launch)
        assert trained, f"launch {launch.number} trained nothing"
        made = {step: samples for step, samples in made.items() if step < min(trained)} | trained
    total = sum(made.values(), Counter())
    planned = Counter(range(steps * BATCH))
    for step in made:
        if made[step] != Counter(range(step * BATCH, (step + 1) * BATCH)):
            print(f"step {step}: {sorted(made[step].elements())}")
    return (planned - total).total(), (total - planned).total()
