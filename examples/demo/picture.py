"""The picture of the run: what was blended, and what was learned, with the kill and the resume."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from proof import Launch

COLORS = {"modules": "#3b6fb6", "packages": "#d9822b", "encodings": "#5a9e6f"}
SMOOTH = 6  # steps to a dot
MEAN = 12


def draw(
    path: Path,
    launches: Sequence[Launch],
    names: Sequence[str],
    phases: Sequence[tuple[int, dict[str, float]]],
    base_rate: float,
) -> None:
    """names: of the datasets by number; phases: (first step, shares)."""
    figure, (blend, loss) = plt.subplots(2, 1, figsize=(9, 7), sharex=True, height_ratios=[2, 3], layout="constrained")
    steps = max(line["step"] for launch in launches for line in launch.lines) + 1
    draw_blend(blend, launches, names, phases, steps)
    draw_losses(loss, launches, base_rate)
    killed, resumed = launches[0].lines[-1]["step"], launches[1].first
    for axes in (blend, loss):
        axes.axvspan(resumed, killed + 1, color="0.9", lw=0)
        axes.spines[["top", "right"]].set_visible(False)
    top = loss.get_ylim()[1]
    before, after = (f"{launch.ranks} rank{'s' * (launch.ranks > 1)}" for launch in launches)
    loss.text(resumed - 1, top, f"resumed from step {resumed}\non {after} ", ha="right", va="top", fontsize=9)
    loss.text(killed + 2, top, f" SIGKILL in step {killed}\n on {before}", ha="left", va="top", fontsize=9)
    loss.set_xlabel("step")
    loss.set_xlim(0, steps)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_blend(
    axes: Axes,
    launches: Sequence[Launch],
    names: Sequence[str],
    phases: Sequence[tuple[int, dict[str, float]]],
    steps: int,
) -> None:
    counts = np.zeros((steps, len(names)))
    for launch in launches:
        for line in launch.counting():
            np.add.at(counts[line["step"]], line["datasets"], 1)
    shares = np.array([part.sum(axis=0) / part.sum() for part in np.split(counts, range(SMOOTH, steps, SMOOTH))])
    middles = np.minimum(np.arange(len(shares)) * SMOOTH + SMOOTH / 2, steps)
    for number, name in enumerate(names):
        axes.plot(middles, shares[:, number], ".", ms=5, color=COLORS[name])
        for (first, weights), last in zip(phases, [*(first for first, _ in phases[1:]), steps], strict=True):
            axes.plot([first, last], [weights[name]] * 2, color=COLORS[name], lw=1, label=None if first else name)
    axes.axvline(phases[1][0], color="0.5", lw=1, ls=":")
    axes.text(phases[1][0] + 1, 0.97, "the weights change", va="top", fontsize=9, color="0.3")
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of the samples")
    axes.legend(loc="upper left", ncols=3, frameon=False, fontsize=9)
    axes.set_title(
        f"What was blended: weights (lines) and samples trained (dots, {SMOOTH} steps each)", fontsize=10, loc="left"
    )


def draw_losses(axes: Axes, launches: Sequence[Launch], base_rate: float) -> None:
    """Each step as a thin line; its running mean as a thick one."""
    for kind, color in (("language_loss", "#444444"), ("concept_loss", "#a4373a")):
        for launch in launches:
            steps = np.array([line["step"] for line in launch.lines])
            losses = np.array([line[kind] for line in launch.lines])
            at = np.unique(steps)
            mean = np.array([losses[steps == step].mean() for step in at])
            sums = np.cumsum(np.concatenate([[0.0], mean]))
            first = np.maximum(0, np.arange(len(mean)) - MEAN + 1)
            running = (sums[1:] - sums[first]) / (np.arange(len(mean)) + 1 - first)
            axes.plot(at + 0.5, mean, color=color, lw=0.6, alpha=0.5)
            label = kind.replace("_", " ") if launch is launches[-1] else None
            axes.plot(at + 0.5, running, color=color, lw=1.6, label=label)
    axes.axhline(base_rate, color="#a4373a", lw=1, ls="--", label="concepts by base rates alone")
    axes.set_ylim(0)
    axes.set_title(f"What was learned (thick: mean of the last {MEAN} steps)", fontsize=10, loc="left")
    axes.set_ylabel("nats per token")
    axes.legend(frameon=False, fontsize=9, loc="upper right")
