"""Writes recorded.json: losses, and the weights that the authors' own code makes of them.

    python -m tests.mixing.record DOREMI ODM     # checkouts of sangmichaelxie/doremi, alon-albalak/online-data-mixing

Their functions are compiled from the checkouts' files and called as their training loops do; nothing of them is kept
here. Losses are of tokens: DoReMi clips the excess of each, so that what it is given here are means after the clip.
"""

import ast
import json
import math
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

STEPS, ROWS, TOKENS = 40, 6, 5
HERE = Path(__file__).parent


def compiled(file: Path, names: set[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Classes, and functions of classes, of a file, by name, without running the rest of it."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if getattr(node, "name", None) in names]
    space = dict(known)
    exec(compile(ast.Module(nodes, []), str(file), "exec"), space)
    return space


def drawn(names: list[str], shares: list[float], seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(dataset of each row, losses [rows, tokens]) of every step: noise around what falls with the steps."""
    draw, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    steps = []
    for step in range(STEPS):
        ids = torch.tensor(draw.choices(range(len(names)), weights=shares, k=ROWS))
        level = torch.tensor([1.5 + 0.7 * k + 2 / (1 + step / 10) for k in range(len(names))])[ids]
        steps.append((ids, level[:, None] + 0.4 * torch.randn(ROWS, TOKENS, generator=noise)))
    return steps


def means(names: list[str], ids: torch.Tensor, losses: torch.Tensor) -> dict[str, float]:
    return {name: losses[ids == k].double().mean().item() for k, name in enumerate(names) if (ids == k).any()}


def short(value: Any) -> Any:
    """Numbers of ten digits."""
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    if isinstance(value, list):
        return [short(item) for item in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


def doremi(checkout: Path, names: list[str], shares: list[float], first: float, options: Mapping[str, float]) -> Any:
    """Buffers and call as in its train.py and trainer.py."""
    known = {"torch": torch, "wandb": SimpleNamespace(log=lambda *a, **k: None)}
    code = compiled(checkout / "doremi/trainer.py", {"update_domain_weights", "write_weights", "read_weights"}, known)
    model = SimpleNamespace(
        train_domain_weights=torch.tensor(shares), avg_domain_weights=torch.tensor(shares),
        perdomain_scores=torch.ones(len(names)) * first, update_counter=torch.tensor(1),
    )  # fmt: skip
    args = SimpleNamespace(
        doremi_optimizer="doremiv1", reweight_eta=options["step_size"], reweight_eps=options["smoothing"]
    )
    trainer = SimpleNamespace(model=model, args=args, domain_list=names)
    trainer.read_weights = lambda: code["read_weights"](trainer)
    trainer.write_weights = lambda weights: code["write_weights"](trainer, weights)
    steps = []
    for ids, losses in drawn(names, shares, seed=len(names)):
        excess = losses - 2.5 - 0.3 * ids[:, None]
        code["update_domain_weights"](trainer, excess, torch.ones_like(excess, dtype=torch.bool), ids)
        weights = dict(zip(names, model.train_domain_weights.tolist(), strict=True))
        average = dict(zip(names, model.avg_domain_weights.tolist(), strict=True))
        steps.append({"losses": means(names, ids, excess.clip(min=0)), "weights": weights, "average": average})
    first_options = {"step_size": options["step_size"], "smoothing": options["smoothing"], "initial_excess": first}
    return {"kind": "doremi", "start": dict(zip(names, shares, strict=True)), "options": first_options, "steps": steps}


def odm(checkout: Path, names: list[str], shares: list[float], smoothing: float | None, warmup: int, every: int) -> Any:
    """The call as in train_mixed_minibatch of its training.py: iterations count from 1."""
    classes = {
        "BaseDataSamplingWeight", "DynamicDataSamplingWeight", "UpdateScheduler", "Exp3WeightUpdater",
        "SmoothedMeanWeightUpdater", "get_weight_updater",
    }  # fmt: skip
    typing = __import__("typing")
    known = {"np": np, "math": math, "List": typing.List, "Dict": typing.Dict, "Optional": typing.Optional}
    code = compiled(checkout / "megatron/data/data_sampling_utils.py", classes, known)
    method = {"update_method": "exp3"} if smoothing is None else {
        "update_method": "smoothed_mean", "smoothing_factor": smoothing
    }  # fmt: skip
    theirs = code["DynamicDataSamplingWeight"](
        names, weights=list(shares), warmup_steps=warmup, update_frequency=every, **method
    )
    steps = []
    for step, (ids, losses) in enumerate(drawn(names, shares, seed=len(names))):
        given = means(names, ids, losses)
        theirs.group_update(step + 1, dataset_names=given.keys(), rewards=given.values())
        weights = dict(zip(names, theirs(), strict=True))
        steps.append({"losses": given, "weights": weights})
    options = {"smoothing": smoothing, "warmup_steps": warmup, "every": every}
    return {"kind": "odm", "start": dict(zip(names, shares, strict=True)), "options": options, "steps": steps}


def main(doremi_at: Path, odm_at: Path) -> None:
    three, eight = ["books", "code", "web"], [f"d{k}" for k in range(8)]
    some, even = [0.2, 0.3, 0.5], [0.125] * 8
    cases = {
        "doremi, three": doremi(doremi_at, three, some, math.log(50257), {"step_size": 1.0, "smoothing": 1e-4}),
        "doremi, eight": doremi(doremi_at, eight, even, 0.0, {"step_size": 0.3, "smoothing": 1e-2}),
        "odm, three": odm(odm_at, three, some, 0.9, 0, 1),
        "odm, eight": odm(odm_at, eight, even, 0.5, 4, 2),
        "exp3, three": odm(odm_at, three, some, None, 0, 1),
        "exp3, eight": odm(odm_at, eight, even, None, 3, 1),
    }
    (HERE / "recorded.json").write_text(json.dumps(short(cases), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
