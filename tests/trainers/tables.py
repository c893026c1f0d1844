"""Losses that torchtitan and OLMo-core report of the model of by_hand.py, or of their own, beside those by hand."""

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
from tests.trainers import by_hand
from tests.trainers.by_hand import VOCABULARY, ByHand, Sample
from tests.trainers.test_values import PACKS, SEQ_LEN, WINDOWS, config_of, samples_of, write_datasets
from tests.trainers.values import apart
from tests.trainers.zygote import Launch

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


def gradient_norm(tables: ByHand, batches: Sequence[Sequence[Sample]]) -> float:
    """Of all parameters, before any clipping."""
    before = tables.tokens.copy(), tables.places.copy()
    tables.step(batches, rate=1.0)
    found = before[0] - tables.tokens, before[1] - tables.places
    tables.tokens, tables.places = before
    return float(np.sqrt(sum((one**2).sum() for one in found)))


def torchtitan(launch: Launch, kind: str) -> None:
    """Losses of steps of two micro batches on two ranks, norms of their gradients, and the loss of the validation,
    whose last micro batch is filled up."""
    found = json.loads((launch.path / "values.json").read_text())
    hand, tables = ByHand(SEQ_LEN), np.array(found["tables"])
    hand.tokens, hand.places = tables[:VOCABULARY], tables[VOCABULARY:]
    train = every_sample(launch.config, kind, launch.steps * launch.batch)
    valid = every_sample(str(launch.valid), kind)
    steps = [[batch] for batch in by_hand.batched(train, launch.batch)]
    wanted = [(hand.evaluate(step), gradient_norm(hand, step)) for step in steps]
    assert len(valid) % (launch.micro * launch.ranks)
    assert len(found["validation"]) >= 2
    assert np.ravel(found["train"]) == pytest.approx(np.ravel(wanted), rel=1e-5)
    assert found["validation"] == pytest.approx([hand.evaluate([valid])] * len(found["validation"]), rel=1e-5)


def olmo(launch: Launch, kind: str) -> None:
    """Losses of steps of two micro batches on two ranks, and norms of their gradients. OLMo-core takes the mean over
    ranks of their mean losses; evaluation is by its own evaluators."""
    from tests.trainers.run_olmo import LOGGED, tiny

    model = tiny()
    model.load_state_dict(torch.load(launch.path / "model.pt"))
    lines = [json.loads(line) for line in (launch.path / f"losses.{launch.number}.0.jsonl").read_text().splitlines()]
    found = [line[name] for line in lines for name in LOGGED if line[name] is not None]
    wanted = []
    samples = every_sample(launch.config, kind, launch.steps * launch.batch)[launch.first * launch.batch :]
    for step in by_hand.batched(samples, launch.batch):
        model.zero_grad()
        loss: Any = sum(mean_loss(model, step[rank :: launch.ranks]) for rank in range(launch.ranks)) / launch.ranks
        loss.backward()
        norms = [one.grad.norm() for one in model.parameters() if one.grad is not None]
        wanted += [loss.item(), torch.stack(norms).norm().item()]
    assert len(found) == 2 * (launch.steps - launch.first)
    assert found == pytest.approx(wanted, rel=1e-4)


def mean_loss(forward: Callable[..., torch.Tensor], samples: Sequence[Sample]) -> torch.Tensor:
    """Of the labels that are trained on, where each document is forwarded by itself."""
    inputs, labels, mask, _, positions = (torch.tensor(np.stack(arrays)) for arrays in zip(*samples, strict=True))
    logits = apart(lambda ids, places: forward(ids), {"input_ids": inputs, "position_ids": positions})
    return cross_entropy(logits[mask == 1], labels[mask == 1])
