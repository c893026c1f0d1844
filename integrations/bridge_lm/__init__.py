"""conceptloader for Megatron-Bridge: a dataset provider for its configurations. See docs/trainers/bridge.md.

Open data.py first.
"""

from .data import ConceptProvider

__all__ = ["ConceptProvider"]
