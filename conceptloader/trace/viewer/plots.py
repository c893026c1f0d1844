"""Figures of matplotlib, for notebooks and reports."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.tools.stats import dataset_stats, heading, name_of
from conceptloader.order.mixture import Mixture
from conceptloader.trace.run import Drawn

_POINTS = 200
_MISSING = "plots: the matplotlib package is not installed"


def plot_stats(dataset: Dataset, top: int = 20) -> Any:
    """A matplotlib Figure: lengths of documents and of the spans of each track, and the `top` most frequent concepts.

    Reads all documents and spans, but no token. Raises ConfigError without the matplotlib package.
    """
    matplotlib, figures = (need(name, _MISSING) for name in ("matplotlib", "matplotlib.figure"))
    value = dataset_stats(dataset)
    rows = [(track, found) for track, found in value["tracks"].items() if found["spans"]]
    with matplotlib.rc_context({"font.size": 8}):
        figure = figures.Figure(figsize=(10, 3 + 3 * len(rows)), layout="constrained")
        axes = figure.subplots(1 + len(rows), 2, squeeze=False)
        _draw_percentiles(axes[0][0], value["document_lengths"], "tokens per document")
        axes[0][1].axis("off")
        axes[0][1].text(0, 0.5, _as_drawn("\n".join(heading(value))), wrap=True)
        for (track, found), (left, right) in zip(rows, axes[1:], strict=True):
            title = _as_drawn(track)
            _draw_percentiles(left, found["span_lengths"], f"{title}: tokens per span")
            shown = found["concepts"][:top][::-1]
            if not shown:
                right.axis("off")
                continue
            bars = range(len(shown))  # not by name, since names may be equal once they are cut
            right.barh(bars, [100 * c["share_of_tokens"] for c in shown])
            right.set_yticks(bars, [_as_drawn(name_of(c)) for c in shown])
            right.set_title(f"{title}: % of tokens under a concept")
    return figure


def plot_mixture(order: Mixture | Drawn, num_samples: int, position: int | None = None) -> Any:
    """A matplotlib Figure: the share of each dataset over the first `num_samples` samples, and its epochs so far.

    position: a sample to be marked, such as where the run is. Raises ConfigError without the matplotlib package.
    """
    figures = need("matplotlib.figure", _MISSING)
    x = sorted({num_samples * k // _POINTS for k in range(_POINTS + 1)})
    counts = [order.counts(at) for at in x]
    per_sample = np.diff(np.array(counts, float), axis=0) / np.diff(x)[:, None]
    figure = figures.Figure(figsize=(9, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    areas = above.stackplot(x[:-1], per_sample.T, step="post")
    above.set_ylabel("share of the samples")
    legend = above.legend(areas, map(str, range(len(areas))), loc="upper left", bbox_to_anchor=(1, 1))
    for text, name in zip(legend.get_texts(), order.names, strict=True):
        text.set_text(_as_drawn(name))  # only now, since legends leave out names that begin with _
    for k, size in enumerate(order.sizes):
        below.plot(x, [at[k] / max(1, size) for at in counts])
    below.set_ylabel("epochs")
    below.set_xlabel("sample")
    for axes in (above, below):
        if position is not None:
            axes.axvline(position, color="black", linewidth=1)
    return figure


def _draw_percentiles(axes: Any, found: Mapping[str, int], title: str) -> None:
    axes.plot(list(map(int, found)), list(found.values()), marker="o")
    axes.set_yscale("symlog")
    axes.set_xlabel("percentile")
    axes.set_title(title)


def _as_drawn(text: str) -> str:
    """Text that matplotlib draws as it is: between two dollar signs it would see mathematics."""
    return text.replace("$", r"\$")
