"""Filtering a dataset: which documents match an expression, and the subsets that consist of them.

An add-on over trace/, whose columns and expressions it uses. Open views.py first.
"""

from conceptloader.subset.views import FilterOptions, filter_dataset

__all__ = ["FilterOptions", "filter_dataset"]
