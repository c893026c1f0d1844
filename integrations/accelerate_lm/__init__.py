"""conceptloader for Accelerate: a loader that save_state and load_state know. See docs/trainers.md.

Open data.py first.
"""

from .data import AcceleratedEvaluation, AcceleratedLoader

__all__ = ["AcceleratedEvaluation", "AcceleratedLoader"]
