"""conceptloader for torchtitan, main from 2026-08-20 on: a dataloader for its configurations. See docs/trainers.md.

Open data.py first.
"""

from .data import ConceptDataLoader

__all__ = ["ConceptDataLoader"]
