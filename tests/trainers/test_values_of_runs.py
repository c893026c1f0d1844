"""Losses that real trainers report, training and validating over two processes, equal to those of a loop by hand."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import conceptloader as cl
from tests.trainers import by_hand
from tests.trainers.by_hand import VOCABULARY, ByHand, Sample
from tests.trainers.matrix import errors, launches, run
from tests.trainers.test_values import PACKS, SEQ_LEN, WINDOWS, config_of, samples_of
from tests.trainers.test_values import folder as folder
from tests.trainers.zygote import Launch, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KINDS = {"windows": WINDOWS, "packs": PACKS}
STEPS, BATCH = 3, 16


def configured(folder: Path, **outputs: Any) -> dict[str, tuple[str, str]]:
    """Kind -> paths of its configurations for training and for validation, which reads every window once."""
    found = {}
    for name, kind in KINDS.items():
        train = config_of(folder, kind, **outputs)
        valid = {**train, "datasets": {"masked": {"path": str(folder / "masked")}}, "order": "sequential"}
        paths = folder / f"{name}.yaml", folder / f"{name}-valid.yaml"
        for path, config in zip(paths, (train, valid), strict=True):
            path.write_text(yaml.safe_dump(config))
        found[name] = str(paths[0]), str(paths[1])
    return found


def every_sample(path: str, kind: str, stop: int | None = None) -> list[Sample]:
    """The first samples of a configuration, or all."""
    data = cl.SampleDataset(path)
    return samples_of(data, KINDS[kind], len(data) if stop is None else stop)


def gradient_norm(tables: ByHand, batches: Sequence[Sequence[Sample]]) -> float:
    """Of all parameters, before any clipping."""
    before = tables.tokens.copy(), tables.places.copy()
    tables.step(batches, rate=1.0)
    found = before[0] - tables.tokens, before[1] - tables.places
    tables.tokens, tables.places = before
    return float(np.sqrt(sum((one**2).sum() for one in found)))


@pytest.fixture(scope="module")
def titan_runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Launch]:
    if "CONCEPTLOADER_TORCHTITAN" not in os.environ:
        pytest.skip("CONCEPTLOADER_TORCHTITAN names no checkout of torchtitan: `make trainers` says how")
    spec: dict[str, Any] = {"micro": 4, "accumulate": 2, "steps": STEPS, "options": {"tables": True}}
    made = {
        kind: launches(tmp_path_factory.mktemp(kind), train, [{**spec, "valid": valid}])
        for kind, (train, valid) in configured(folder).items()
    }
    output = run("run_torchtitan", list(made.values()))
    assert [errors(one) for one in made.values()] == [[], []], output[-3000:]
    return {kind: chain[0] for kind, chain in made.items()}


@pytest.mark.parametrize("kind", list(KINDS))
def test_torchtitan(titan_runs: dict[str, Launch], folder: Path, kind: str) -> None:
    """Losses of steps of two micro batches on two ranks, norms of their gradients, and the loss of the validation,
    whose last micro batch is filled up."""
    launch = titan_runs[kind]
    found = json.loads((launch.path / "values.json").read_text())
    hand, tables = ByHand(SEQ_LEN), np.array(found["tables"])
    hand.tokens, hand.places = tables[:VOCABULARY], tables[VOCABULARY:]
    train, valid = every_sample(launch.config, kind, STEPS * BATCH), every_sample(str(launch.valid), kind)
    steps = [[batch] for batch in by_hand.batched(train, BATCH)]
    wanted = [(hand.evaluate(step), gradient_norm(hand, step)) for step in steps]
    assert len(valid) % (launch.micro * launch.ranks)
    assert len(found["validation"]) >= 2
    assert np.ravel(found["train"]) == pytest.approx(np.ravel(wanted), rel=1e-5)
    assert found["validation"] == pytest.approx([hand.evaluate([valid])] * len(found["validation"]), rel=1e-5)


@pytest.fixture(scope="module")
def olmo_runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Launch]:
    pytest.importorskip("olmo_core")
    spec: dict[str, Any] = {"micro": 4, "accumulate": 2, "steps": STEPS, "options": {"tables": True}}
    made = {
        kind: launches(tmp_path_factory.mktemp(kind), train, [spec])
        for kind, (train, _) in configured(folder, position_ids="window").items()
    }
    output = run("run_olmo", list(made.values()))
    assert [errors(one) for one in made.values()] == [[], []], output[-3000:]
    return {kind: chain[0] for kind, chain in made.items()}


@pytest.mark.parametrize("kind", list(KINDS))
def test_olmo(olmo_runs: dict[str, Launch], kind: str) -> None:
    """Losses of steps of two micro batches on two ranks, and norms of their gradients. OLMo-core takes the mean over
    ranks of their mean losses; evaluation is by its own evaluators."""
    from tests.trainers.run_olmo import LOGGED, tiny

    launch, model = olmo_runs[kind], tiny()
    model.load_state_dict(torch.load(launch.path / "model.pt"))
    lines = [json.loads(line) for line in (launch.path / "values.0.jsonl").read_text().splitlines()]
    found = [line[name] for line in lines for name in LOGGED if line[name] is not None]
    wanted = []
    for step in by_hand.batched(every_sample(launch.config, kind, STEPS * BATCH), BATCH):
        model.zero_grad()
        loss: Any = sum(mean_loss(model, step[rank :: launch.ranks]) for rank in range(launch.ranks)) / launch.ranks
        loss.backward()
        norms = [one.grad.norm() for one in model.parameters() if one.grad is not None]
        wanted += [loss.item(), torch.stack(norms).norm().item()]
    assert len(found) == 2 * STEPS
    assert found == pytest.approx(wanted, rel=1e-4)


def mean_loss(model: Any, samples: Sequence[Sample]) -> torch.Tensor:
    """Of the labels that are trained on, window by window."""
    losses = [
        torch.nn.functional.cross_entropy(
            model(torch.tensor(one.inputs)[None])[0], torch.tensor(one.labels), reduction="none"
        )[torch.tensor(one.mask) == 1]
        for one in samples
    ]
    return torch.cat(losses).mean()


ALIKE = """
import gc

from olmo_core.nn.transformer import Transformer

for model in [one for one in gc.get_objects() if isinstance(one, Transformer)]:
    for parameter in model.parameters():
        first = parameter.detach().clone()
        torch.distributed.broadcast(first, 0)
        assert torch.equal(first, parameter), "ranks have trained models of their own"
    print("ALIKE")
"""


def test_the_page_of_olmo_trains_one_model_on_two_ranks(checkout: Path, tmp_path: Path) -> None:
    pytest.importorskip("olmo_core")
    page = (checkout / "docs" / "trainers" / "olmo.md").read_text("utf-8")
    corpus, script = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (build,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    (tmp_path / "corpus.py").write_text(corpus)
    (tmp_path / "train.py").write_text(script + ALIKE)
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    launch = f"{sys.executable} -m torch.distributed.run --nproc_per_node 2 --master_port {free_port()} train.py"
    command = f"set -e; {sys.executable} corpus.py; {sys.executable} -m {build.strip()}; timeout 200 {launch}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("ALIKE") == 2
