"""conceptloader for Hugging Face's Trainer: one whose train_dataset is a SampleDataset. See docs/trainers.md.

Open data.py first.
"""

from .data import ConceptTrainer, Progress, collate

__all__ = ["ConceptTrainer", "Progress", "collate"]
