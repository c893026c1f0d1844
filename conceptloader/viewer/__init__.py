"""The viewer of datasets, runs and batches: the local web page of `conceptloader viewer`, and notebook output.

Open server.py first for the page, notebook.py for notebooks.
"""

from conceptloader.viewer.notebook import show
from conceptloader.viewer.plots import plot_mixture, plot_stats

__all__ = ["plot_mixture", "plot_stats", "show"]
