"""Filtering a dataset: which documents an expression holds of, and the subsets that are made of them.

Open views.py first.
"""

from conceptloader.trace.filter.views import FilterOptions, filter_dataset

__all__ = ["FilterOptions", "filter_dataset"]
