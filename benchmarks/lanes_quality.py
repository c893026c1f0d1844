"""How far an order in lanes is from a full shuffle: what batches have in common, and the loss of small trainings.

    PYTHONPATH=.:benchmarks python benchmarks/lanes_quality.py [--seeds 3] [--steps 1200] [--picture docs/lanes.png]

The corpus is the source code of Python's standard library, byte by byte, file after file in order of their paths: what
lies near each other is alike. Orders: full shuffle; lanes with 8 blocks open and with 1; storage order.
"""

import argparse
import json
import statistics
import sys
import sysconfig
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import ROOT
from small_gpt import SmallGPT

import conceptloader as cl
from conceptloader.order.many.lanes import LaneMixture
from conceptloader.order.reference import Lanes

SEQ_LEN, BATCH, BLOCK, HELD_OUT = 64, 32, 64, 512
Order = Callable[[np.ndarray], np.ndarray]


def corpus() -> tuple[np.ndarray, np.ndarray]:
    """(bytes, number of the file of each byte)."""
    cached = ROOT / "stdlib.npz"
    if not cached.exists():
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
        texts = [np.frombuffer(file.read_bytes(), np.uint8) for file in files if "site-packages" not in file.parts]
        ROOT.mkdir(parents=True, exist_ok=True)
        numbers = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        np.savez(cached, text=np.concatenate(texts), files=numbers)
    held = np.load(cached)
    return held["text"], held["files"]


def orders(windows: int, seed: int) -> dict[str, Order]:
    def lanes(at_once: int) -> LaneMixture:
        return LaneMixture(Lanes(count=BATCH, windows=BLOCK, open=at_once), sizes=[windows], seed=seed)

    shuffled, eight, one = cl.Mixture([windows], seed=seed), lanes(8), lanes(1)
    return {
        "full shuffle": lambda g: shuffled.sample_many(g)[2],
        "lanes, 8 blocks open": lambda g: eight.sample_many(g)[2],
        "lanes, 1 block open": lambda g: one.sample_many(g)[2],
        "storage order": lambda g: g % np.uint64(windows),
    }


def alike(windows: np.ndarray, total: int, first_file: np.ndarray) -> dict[str, Any]:
    """windows: [batches, BATCH]. Correlations of the places of windows in the corpus, and files in common."""
    place = (windows.astype(float) - total / 2) / (total / 12**0.5)
    lags = {lag: float((place.ravel()[:-lag] * place.ravel()[lag:]).mean()) for lag in (1, 2, 31, 32, 64, 320, 3200)}
    files = first_file[windows.astype(np.int64)]
    shared = np.mean([1 - len(np.unique(row)) / BATCH for row in files])
    near = np.mean([np.diff(np.sort(row)).min() < BLOCK for row in windows.astype(np.int64)])
    two = np.mean([len(np.intersect1d(a, b)) / BATCH for a, b in pairwise(files)])
    means = place.mean(1).std() * BATCH**0.5
    return {
        "correlation at lag": lags,
        "samples of a batch whose file another one has, too (%)": 100 * float(shared),
        "batches with two windows of one block's length (%)": 100 * float(near),
        "files of a batch that the next one has, too (%)": 100 * float(two),
        "spread of batch means (1: independent)": float(means),
    }


def train(order: Order, text: np.ndarray, held_out: torch.Tensor, steps: int, seed: int) -> list[tuple[int, float]]:
    torch.manual_seed(seed)
    model = SmallGPT(256, SEQ_LEN, 2, 96, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1, (k + 1) / 50) * (1 - 0.95 * k / steps))
    ones = torch.ones(BATCH, SEQ_LEN)
    curve = []
    for step in range(steps):
        chosen = order(np.arange(step * BATCH, (step + 1) * BATCH, dtype=np.uint64)).astype(np.int64)
        rows = torch.from_numpy(text[chosen[:, None] * SEQ_LEN + np.arange(SEQ_LEN + 1)].astype(np.int64))
        model(rows[:, :-1], rows[:, 1:], ones).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if (step + 1) % max(1, steps // 12) == 0:
            with torch.no_grad():
                parts = [model(part[:, :-1], part[:, 1:], ones[: len(part)]) for part in held_out.split(BATCH)]
            curve.append((step + 1, float(torch.stack(parts).mean())))
    return curve


def picture(found: dict[str, Any], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    for name, one in found["orders"].items():
        lags = {int(k): v for k, v in one["correlation at lag"].items()}
        left.plot(list(lags), list(lags.values()), "o-", markersize=3, label=name)
        if one["curves"]:
            steps = [step for step, _ in one["curves"][0]]
            losses = np.array([[loss for _, loss in curve] for curve in one["curves"]])
            (line,) = right.plot(steps, losses.mean(0), label=name)
            right.fill_between(steps, losses.min(0), losses.max(0), alpha=0.2, color=line.get_color())
    left.set(xscale="log", xlabel="samples apart", title="correlation of places in the corpus")
    right.set(xlabel="step", title="loss on held-out windows (band: seeds)", ylim=(1.4, 3.0))
    left.legend(fontsize=7)
    for axis in (left, right):
        axis.title.set_fontsize(9)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--picture")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    text, file = corpus()
    windows = (len(text) - 1) // SEQ_LEN
    rng = np.random.default_rng(1)  # held out: 8 windows in every 200, so that all parts have some
    stretches = np.arange(windows // 200) * 200
    held = rng.choice((stretches[:, None] + np.arange(8)).ravel(), HELD_OUT, replace=False)
    kept = np.setdiff1d(np.arange(windows), (stretches[:, None] + np.arange(8)).ravel())
    rows = np.concatenate([text[w * SEQ_LEN : w * SEQ_LEN + SEQ_LEN + 1] for w in held]).reshape(-1, SEQ_LEN + 1)
    held_out = torch.from_numpy(rows.astype(np.int64))
    first_file = file[kept * SEQ_LEN]
    found: dict[str, Any] = {"windows": len(kept), "files": int(file.max()) + 1, "orders": {}}
    for name in orders(len(kept), 0):
        curves = []
        for seed in range(asked.seeds):
            order = orders(len(kept), seed)[name]
            curves.append(train(lambda g, o=order: kept[o(g).astype(np.int64)], text, held_out, asked.steps, seed))
            print(name, seed, curves[-1], file=sys.stderr)
        batches = orders(len(kept), 0)[name](np.arange(len(kept) // BATCH * BATCH, dtype=np.uint64)).reshape(-1, BATCH)
        last = [curve[-1][1] for curve in curves]
        found["orders"][name] = {
            **alike(batches, len(kept), first_file),
            "loss": statistics.mean(last) if last else None,
            "losses": last,
            "curves": curves,
        }
        print(json.dumps({k: v for k, v in found["orders"][name].items() if k != "curves"}), file=sys.stderr)
        (ROOT / "lanes_quality.json").write_text(json.dumps(found))
    if asked.picture:
        picture(found, asked.picture)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
