"""conceptloader for torchtitan: a dataloader for its configurations. See docs/trainers.md.

Open data.py first.
"""

from .data import ConceptDataLoader

__all__ = ["ConceptDataLoader"]
