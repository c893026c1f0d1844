"""Figures of matplotlib, for notebooks and reports."""

from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.cli.output import as_drawn
from conceptloader.cli.stats import dataset_stats, figure_of
from conceptloader.format.read.dataset import Dataset
from conceptloader.order.mixture import Mixture
from conceptloader.order.sequential import Sequential

_POINTS = 200


def plot_stats(dataset: Dataset, top: int = 20) -> Any:
    """A matplotlib Figure: lengths of documents and of the spans of each track, and the `top` most frequent concepts.

    Reads all documents and spans, but no token. Raises ConfigError without the matplotlib package.
    """
    return figure_of(dataset_stats(dataset), top)


def plot_mixture(order: Mixture | Sequential, num_samples: int, position: int | None = None) -> Any:
    """A matplotlib Figure: the share of each dataset over the first `num_samples` samples, and its epochs so far.

    position: a sample to be marked, such as where the run is. Raises ConfigError without the matplotlib package.
    """
    figures = need("matplotlib.figure", "plot_mixture: the matplotlib package is not installed")
    x = sorted({num_samples * k // _POINTS for k in range(_POINTS + 1)})
    counts = [order.counts(at) for at in x]
    per_sample = np.diff(np.array(counts, float), axis=0) / np.diff(x)[:, None]
    figure = figures.Figure(figsize=(9, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    areas = above.stackplot(x[:-1], per_sample.T, step="post")
    above.set_ylabel("share of the samples")
    legend = above.legend(areas, map(str, range(len(areas))), loc="upper left", bbox_to_anchor=(1, 1))
    for text, name in zip(legend.get_texts(), order.names, strict=True):
        text.set_text(as_drawn(name))  # only now, since legends leave out names that begin with _
    for k, size in enumerate(order.sizes):
        below.plot(x, [at[k] / max(1, size) for at in counts])
    below.set_ylabel("epochs")
    below.set_xlabel("sample")
    for axes in (above, below):
        if position is not None:
            axes.axvline(position, color="black", linewidth=1)
    return figure
