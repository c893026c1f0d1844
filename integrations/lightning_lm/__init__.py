"""conceptloader for Lightning: a LightningDataModule whose checkpoints hold what was trained. See docs/trainers.md.

Open data.py first.
"""

from .data import ConceptDataModule

__all__ = ["ConceptDataModule"]
