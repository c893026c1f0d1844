"""conceptloader for OLMo-core: a data loader for its Trainer. See docs/trainers.md.

Open data.py first.
"""

from .data import ConceptDataLoader, ConceptDataLoaderConfig

__all__ = ["ConceptDataLoader", "ConceptDataLoaderConfig"]
