"""Losses that torchtitan and OLMo-core report of models of their own, beside those by hand."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

import conceptloader as cl
from tests.ranks.launch import Launch
from tests.trainers import by_hand
from tests.trainers.by_hand import Sample
from tests.trainers.test_values import PACKS, WINDOWS, config_of, samples_of, write_datasets
from tests.trainers.values import apart

Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of input_ids and position_ids [B, S]."""
KINDS = {"windows": WINDOWS, "packs": PACKS}


def configs(folder: Path, **outputs: Any) -> dict[str, tuple[str, str]]:
    """Kind -> paths of its configurations for training and for validation, which reads every window once."""
    write_datasets(folder)
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


def gradient_norm(model: torch.nn.Module, loss: torch.Tensor) -> float:
    """Of all parameters, before any clipping."""
    model.zero_grad()
    loss.backward()
    return torch.stack([one.grad.norm() for one in model.parameters() if one.grad is not None]).norm().item()


def torchtitan(launch: Launch, model: torch.nn.Module, forward: Forward, found: dict[str, list[float]]) -> None:
    """Losses and norms of gradients in steps of several micro batches and ranks, and losses of validations, whose last
    micro batch is padded: `found`, and by hand, in values.NUMBER for the test."""
    kind, valid = Path(launch.config).stem, str(launch.valid)
    samples = every_sample(launch.config, kind, launch.steps * launch.batch)[launch.first * launch.batch :]
    losses = [mean_loss(forward, step) for step in by_hand.batched(samples, launch.batch)]
    held_out = every_sample(valid, kind)
    assert len(held_out) % (launch.micro * launch.ranks)
    with torch.no_grad():
        validated = mean_loss(forward, held_out).item()
    wanted = {
        "losses": [loss.item() for loss in losses],
        "norms": [gradient_norm(model, loss) for loss in losses],
        "validation": [validated] * len(found["validation"]),
    }
    pairs = {name: [found[name], wanted[name]] for name in found}
    (launch.path / f"values.{launch.number}").write_text(json.dumps(pairs))


def olmo(launch: Launch, kind: str) -> None:
    """Losses of steps of two micro batches on two ranks, and norms of their gradients. OLMo-core takes the mean over
    ranks of their mean losses; evaluation is by its own evaluators."""
    from tests.trainers.run_olmo import LOGGED, tiny

    model = tiny()

    def forward(ids: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(ids)
        return logits

    model.load_state_dict(torch.load(launch.path / "model.pt"))
    lines = [json.loads(line) for line in (launch.path / f"losses.{launch.number}.0.jsonl").read_text().splitlines()]
    found = [line[name] for line in lines for name in LOGGED if line[name] is not None]
    wanted = []
    samples = every_sample(launch.config, kind, launch.steps * launch.batch)[launch.first * launch.batch :]
    for step in by_hand.batched(samples, launch.batch):
        loss: Any = sum(mean_loss(forward, step[rank :: launch.ranks]) for rank in range(launch.ranks)) / launch.ranks
        wanted += [loss.item(), gradient_norm(model, loss)]
    assert len(found) == 2 * (launch.steps - launch.first)
    assert found == pytest.approx(wanted, rel=1e-4)


def mean_loss(forward: Forward, samples: Sequence[Sample]) -> torch.Tensor:
    """Of the labels that are trained on, where each document is forwarded by itself."""
    inputs, labels, mask, _, positions = (torch.tensor(np.stack(arrays)) for arrays in zip(*samples, strict=True))
    logits = apart(forward, {"input_ids": inputs, "position_ids": positions})
    return cross_entropy(logits[mask == 1], labels[mask == 1])
