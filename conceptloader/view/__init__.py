"""Looking at datasets, runs and batches: the local web page of `conceptloader view`, and what notebooks show.

Open server.py first for the page, notebook.py for notebooks.
"""

from conceptloader.view.notebook import show
from conceptloader.view.plots import plot_mixture, plot_stats

__all__ = ["plot_mixture", "plot_stats", "show"]
