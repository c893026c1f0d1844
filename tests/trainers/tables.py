"""Losses that torchtitan and OLMo-core report of models of their own, beside those by hand."""

import json

import pytest
import torch

from tests.trainers.values import mean_apart, rows


def steps(launch):
    """The samples of each step that a launch makes."""
    return [range(step * launch.batch, (step + 1) * launch.batch) for step in range(launch.first, launch.steps)]


def gradient_norm(model, loss):
    """Of all parameters, before any clipping."""
    model.zero_grad()
    loss.backward()
    return torch.stack([one.grad.norm() for one in model.parameters() if one.grad is not None]).norm().item()


def torchtitan(launch, model, forward, found):
    """Losses and norms of gradients in steps of several micro batches and ranks, and losses of validations, whose last
    micro batch is padded: `found`, and by hand, in values.NUMBER for the test."""
    losses = [mean_apart(forward, rows(launch.config, step)) for step in steps(launch)]
    held_out = rows(launch.valid)
    assert len(held_out["labels"]) % (launch.micro * launch.ranks)
    with torch.no_grad():
        validated = mean_apart(forward, held_out).item()
    wanted = {
        "losses": [loss.item() for loss in losses],
        "norms": [gradient_norm(model, loss) for loss in losses],
        "validation": [validated] * len(found["validation"]),
    }
    pairs = {name: [found[name], wanted[name]] for name in found}
    (launch.path / f"values.{launch.number}").write_text(json.dumps(pairs))


def olmo(launch):
    """Losses of steps of two micro batches on two ranks, and norms of their gradients. OLMo-core takes the mean over
    ranks of their mean losses; evaluation is by its own evaluators."""
    from tests.trainers.run_olmo import LOGGED, tiny

    model = tiny()

    def forward(ids, _):
        return model(ids)

    model.load_state_dict(torch.load(launch.path / "model.pt"))
    lines = [json.loads(line) for line in (launch.path / f"losses.{launch.number}.0.jsonl").read_text().splitlines()]
    found = [line[name] for line in lines for name in LOGGED if line[name] is not None]
    wanted = []
    for step in steps(launch):
        of_ranks = [rows(launch.config, step[rank :: launch.ranks]) for rank in range(launch.ranks)]
        loss = sum(mean_apart(forward, batch) for batch in of_ranks) / launch.ranks
        wanted += [loss.item(), gradient_norm(model, loss)]
    assert len(found) == 2 * (launch.steps - launch.first)
    assert found == pytest.approx(wanted, rel=1e-4)
