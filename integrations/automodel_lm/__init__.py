"""conceptloader for NeMo Automodel: the dataset that its YAML names. See docs/trainers/automodel.md.

Open data.py first.
"""

from .data import AutomodelSamples

__all__ = ["AutomodelSamples"]
