"""Filtering a dataset: which documents match an expression, and the subsets that consist of them.

Open views.py first.
"""

from conceptloader.trace.filter.views import FilterOptions, filter_dataset

__all__ = ["FilterOptions", "filter_dataset"]
