"""What people look at: windows with their spans in notebooks and in the pages of `--html`, plots, batches as text.

Open windows.py first, then render.py.
"""

from conceptloader.trace.viewer.notebook import show
from conceptloader.trace.viewer.plots import plot_mixture, plot_stats

__all__ = ["plot_mixture", "plot_stats", "show"]
