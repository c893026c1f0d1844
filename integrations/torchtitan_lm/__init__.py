"""conceptloader for torchtitan (main, from 2026-08-20 on): a dataloader that its configurations name. See docs/trainers.md.

Open data.py first.
"""

from .data import ConceptDataLoader

__all__ = ["ConceptDataLoader"]
