"""Filtering a dataset: which documents match an expression, and the subsets that consist of them.

An add-on over trace/, whose columns and expressions it uses. Open views.py first.
"""

from conceptloader.subset.views import SubsetOptions, make_subsets

__all__ = ["SubsetOptions", "make_subsets"]
